"""How much memory a training step takes: predicted on tensors without data, and measured."""
