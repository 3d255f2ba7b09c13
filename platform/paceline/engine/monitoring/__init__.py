"""What a run tells beside its losses: the times of each rank, memory, the machines, and whether speeds compare."""
