"""One warm worker group, or this process, that does one job after the other, and a journal of the answers."""
