"""Measures which techniques help a model on its hardware, and recommends a config."""
