"""Memory of a training step: predicted on tensors without data, and measured."""
