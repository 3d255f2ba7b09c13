"""Running experiments: in this process, or on Ray. The only place that imports ray; wires engine and tracking."""
