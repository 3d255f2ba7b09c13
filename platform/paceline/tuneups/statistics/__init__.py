"""What measurements show: speed from pairs of windows, quality from seeds, and where to measure next. No torch."""

from paceline.tuneups.statistics.budget import next_technique
from paceline.tuneups.statistics.equivalence import Quality, compare_quality, seeds_needed
from paceline.tuneups.statistics.intervals import Interval, speedup
from paceline.tuneups.statistics.judge import Judge, Noise, Verdict

__all__ = [
    "Interval",
    "Judge",
    "Noise",
    "Quality",
    "Verdict",
    "compare_quality",
    "next_technique",
    "seeds_needed",
    "speedup",
]
