"""Sweeps of these tests are simulated."""

from support.sweeps.unsent_sweeps import mlflow_does_not_answer, new_sweep

__all__ = ["mlflow_does_not_answer", "new_sweep"]
