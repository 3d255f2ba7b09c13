"""Tasks, which define the loss and the metrics: one file each."""
