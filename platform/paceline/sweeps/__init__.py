"""Sweeps: many trials of one experiment on warm worker groups, searched by Ray Tune."""
