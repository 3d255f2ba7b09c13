"""Time of a training step by part, its bottleneck, and the fields of the config that fix it."""
