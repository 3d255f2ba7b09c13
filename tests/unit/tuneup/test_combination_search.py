"""Which techniques of a combination are left out as idle."""

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.tuneups.combination_search import Combining
from paceline.tuneups.outcome import Beside
from paceline.tuneups.paired_benchmark import Pair
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.techniques import Technique
from support.toys import toy_config

FAST = Technique("fast", {"optimizer.lr": 0.2}, "fast", "why")
LAST = Technique("last", {"trainer.memory_format": "channels_last"}, "last", "why")
BF16 = Technique("bf16", {"trainer.precision": "bf16-mixed"}, "bf16", "why")


class OneBuild:
    """Answers each question of the search with the same speed ratio by the name of the technique in question."""

    def __init__(self, ratios: dict[str, float]) -> None:
        self._ratios = ratios

    def run(self, screened: Sequence[ScreenedPair], share: float = 1.0) -> None:
        """Measure each pair once."""
        for each in screened:
            asked = each.name.rpartition(" for ")[2]
            each.pairs += [Pair(self._ratios.get(asked, 2.0) * noise, 1.0) for noise in (0.99, 1.0, 1.01, 1.0)]


def left_of(chosen: list[Technique], ratios: dict[str, float], earlier: Sequence[Beside]) -> list[str]:
    """Names of those that are left when the idle ones are taken out."""
    config = toy_config(trainer__precision="32-true")
    screening: Any = OneBuild(ratios)
    facts: Any = None
    search = Combining(config, facts, screening, chosen, {})
    search.beside = list(earlier)
    return [each.name for each in search._without_idle(chosen)]


def helped(speedup: float, *others: str) -> Beside:
    return Beside("bf16", others, "helps", "faster", speedup, (speedup, speedup), 6)


@pytest.mark.parametrize(
    ("now", "earlier", "is_kept"),
    [
        (0.99, [], False),
        (0.99, [helped(1.08, "fast")], True),  # that was the same question
        (0.99, [helped(1.08, "fast", "last")], True),  # one other more
        (0.99, [helped(1.08, "fast", "last", "set-to-none")], False),  # that was another config
        (0.93, [helped(1.08, "fast", "last")], False),  # both looks together are no gain
        (1.10, [], True),
    ],
)
def test_a_gain_that_was_seen_counts_against_one_build_that_does_not_show_it(
    now: float, earlier: list[Beside], is_kept: bool
) -> None:
    assert ("bf16" in left_of([FAST, BF16], {"bf16": now}, earlier)) == is_kept


def test_the_most_idle_one_is_left_out_first() -> None:
    assert left_of([FAST, LAST, BF16], {"bf16": 0.97, "last": 1.0}, []) == ["fast"]
