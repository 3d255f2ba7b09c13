"""What is reported about a technique that met others: how much it adds to them."""

from collections.abc import Sequence

from paceline.tuneups.outcome import Beside, Question
from paceline.tuneups.screening import ScreenedPair

NO_TIME = "there was no time for it"


def beside_of(name: str, others: Sequence[str], question: Question, pair: ScreenedPair) -> Beside:
    """The result of a pair in which a technique was added to others.

    Args:
        pair: of the others alone against the others with it.
    """
    if pair.problem or not pair.pairs:
        reason = f"it cannot be run: {pair.problem}" if pair.problem else NO_TIME
        return Beside(name, tuple(others), question, "not measured", reason=reason)
    interval = pair.interval
    return Beside(
        name,
        tuple(others),
        question,
        pair.direction,
        interval.estimate,
        (interval.low, interval.high),
        len(pair.pairs),
    )
