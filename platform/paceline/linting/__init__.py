"""Lint: faults of the user's model and config that can be seen without training, each with its reason and its hint.

The rules are listed in `rules`; `examining` builds what they look at, in the process that `apart` starts.
"""
