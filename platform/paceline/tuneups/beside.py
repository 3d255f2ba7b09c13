"""What is reported about a technique that met others: how much it adds to them."""

from collections.abc import Sequence

from paceline.tuneups.outcome import Beside, Question
from paceline.tuneups.ring import Contest

NO_TIME = "there was no time for it"


def beside_of(name: str, others: Sequence[str], question: Question, contest: Contest) -> Beside:
    """The result of a contest in which a technique was added to others.

    Args:
        contest: of the others alone against the others with it.
    """
    if contest.problem or not contest.standing.pairs:
        reason = f"it cannot be run: {contest.problem}" if contest.problem else NO_TIME
        return Beside(name, tuple(others), question, "not applicable", reason=reason)
    interval = contest.standing.interval
    return Beside(
        name,
        tuple(others),
        question,
        contest.standing.final,
        interval.estimate,
        (interval.low, interval.high),
        len(contest.standing.pairs),
    )
