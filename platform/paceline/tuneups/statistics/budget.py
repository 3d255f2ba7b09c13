"""Which technique is to be measured next, so that the time goes where a decision is worth most."""

import random
from collections.abc import Mapping
from math import sqrt
from statistics import median

from paceline.tuneups.statistics.judge import NORMAL_PER_DEVIATION, Judge

DEVIATIONS = 2.5
"""Standard errors that an interval of a judge is wide on each side, about."""

_LEAST_SPREAD = 0.002
_UNKNOWN_SPREAD = 0.05


def next_technique(
    judges: Mapping[str, Judge], seconds_per_pair: Mapping[str, float], left_seconds: float, seed: int = 0
) -> str | None:
    """The technique whose next pair is worth most; None when all are decided or no pair fits into the time that is
    left.

    Techniques that have fewer than `min_pairs` come first, in turn. Then the one with the largest gain that is still
    possible for each second until it is likely to be decided; among techniques without such, the one that is decided
    soonest. Equals are drawn from at random; the same call gives the same answer.

    Args:
        judges: by technique.
        seconds_per_pair: by technique, what one more pair of it takes, the change to it included.
        left_seconds: of the budget.
    """
    able = [name for name, each in judges.items() if each.verdict is None and seconds_per_pair[name] <= left_seconds]
    if not able:
        return None
    young = [name for name in able if len(judges[name]) < judges[name].min_pairs]
    if young:
        ranks = {name: (-float(len(judges[name])), 0.0) for name in young}
    else:
        ranks = {name: _worth(judges[name], seconds_per_pair[name]) for name in able}
    best = max(ranks.values())
    equals = sorted(name for name, rank in ranks.items() if rank == best)
    return random.Random(f"{seed} {sum(map(len, judges.values()))}").choice(equals)


def pairs_to_decision(judge: Judge) -> float:
    """How many more pairs a judge is likely to need, going by those that it has.

    The interval has to shrink until it lies within the margin or beyond the noise floor, whichever is sooner.
    """
    centre, spread = _centre(judge), _spread(judge)
    distance = max(abs(centre) - judge.floor, judge.margin - abs(centre), 1e-6)
    wanted = (DEVIATIONS * spread / distance) ** 2
    return min(max(wanted - len(judge), 1.0), float(max(judge.max_pairs - len(judge), 1)))


def _worth(judge: Judge, seconds_per_pair: float) -> tuple[float, float]:
    seconds = pairs_to_decision(judge) * max(seconds_per_pair, 1e-9)
    possible = _centre(judge) + DEVIATIONS * _spread(judge) / sqrt(max(len(judge), 1))
    return max(possible - judge.margin, 0.0) / seconds, -seconds


def _centre(judge: Judge) -> float:
    return median(judge.logs) if judge.logs else 0.0


def _spread(judge: Judge) -> float:
    """The larger one of the A/A duel's and this one's own."""
    if len(judge) < 2:
        return judge.noise.spread or _UNKNOWN_SPREAD
    centre = _centre(judge)
    own = NORMAL_PER_DEVIATION * median(abs(each - centre) for each in judge.logs)
    return max(own, judge.noise.spread, _LEAST_SPREAD)
