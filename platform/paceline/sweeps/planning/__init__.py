"""Before the first trial: planned trials, their checks, memory, slots and the forecast of the cost."""
