"""What happens beside the optimizer steps: one file per callback."""
