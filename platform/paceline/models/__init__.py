"""The networks, one file each; a new file with a `ModelConfig` is all that a new one needs."""
