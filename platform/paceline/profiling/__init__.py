"""Where the time of a training step goes, what holds it up, and which fields of the config mend that."""
