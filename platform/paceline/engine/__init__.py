"""The training loop and its techniques: torch and config only, never ray, never mlflow."""
