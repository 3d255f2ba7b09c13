"""Batch-size advice: which batch size, which learning rate, how many workers, measured on a model and its hardware."""
