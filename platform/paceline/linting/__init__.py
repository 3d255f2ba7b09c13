"""Lint: faults of the user's model and config that can be seen without training, each with its reason and its hint.

The rules are listed in `rules`; `examining` builds what they look at.
"""

from paceline.linting.examining import lint as lint
from paceline.linting.finding import Finding as Finding
