"""What is done with runs that are over: they are sent to MLflow, reported, exported. Never imports ray."""
