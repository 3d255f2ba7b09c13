"""Finished runs: sending them to MLflow, reporting, evaluating, exporting. Never imports ray."""
