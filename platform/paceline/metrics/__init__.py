"""Metrics of a whole evaluation, computed over all workers: never averaged over batches."""
