"""Callbacks, which run between optimizer steps: one file per callback."""
