"""Monitoring beside the losses: times of each rank, memory, machines, and comparability of speeds."""
