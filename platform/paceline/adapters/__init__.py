"""Adapters for modules written for other libraries."""

from paceline.adapters.lightning import LightningTask

__all__ = ["LightningTask"]
