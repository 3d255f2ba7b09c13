"""`python -m paceline.cli`, which is the command `paceline`."""

from paceline.cli import main

main()
