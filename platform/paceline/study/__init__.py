"""Studies of the user's own model before and beside training: what it takes, and what makes it faster."""
