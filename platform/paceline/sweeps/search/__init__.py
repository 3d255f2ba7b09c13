"""Ray Tune at work: which trials come next, which continue, and the trainable that Tune runs."""
