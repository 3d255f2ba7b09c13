"""Learning rate schedules, one file each."""
