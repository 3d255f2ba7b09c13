"""Ray Tune at work: which points come next, which trials continue, and what Tune runs for each of them."""
