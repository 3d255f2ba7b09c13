"""Before the first trial: the points, whether they can run and where, and what the sweep is going to cost."""
