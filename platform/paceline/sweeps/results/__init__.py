"""The result of the trials: ranking, tables and pictures, and what the sweep's own MLflow run records."""
