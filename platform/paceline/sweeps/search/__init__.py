"""Ray Tune at work: which points come next, which trials go on, and what Tune runs for each of them."""
