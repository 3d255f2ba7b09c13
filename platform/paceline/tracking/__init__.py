"""The record of a run: its journal, and the way into MLflow. Never imports torch or ray.

No module of this package imports MLflow or matplotlib when it is itself imported: MLflow takes seconds, and is loaded
by the upload thread while training is already under way. Nor does the package import its modules: whoever
needs one does not pay for the rest.
"""
