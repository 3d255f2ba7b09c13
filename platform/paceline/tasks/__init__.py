"""What is learned: the loss and the metrics, one file each."""
