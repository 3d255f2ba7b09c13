"""Unit tests run in their own process alone, and a test takes at most some tenths of a second."""

from support.own_process import stay_in_this_process

__all__ = ["stay_in_this_process"]
