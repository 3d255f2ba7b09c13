"""Trainings, lints, pictures, simulated sweeps and tune-ups as a whole: they need seconds, but no other process."""

from support.own_process import stay_in_this_process

__all__ = ["stay_in_this_process"]
