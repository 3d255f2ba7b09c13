"""Each technique measured on the user's own model and hardware, and a config of those that help."""
