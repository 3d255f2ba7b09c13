"""Lines of text about several trials: their states, the reasons for them, and the means of a setting."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from paceline.sweeps.results.labels import setting_text, shortened, spread_text, state_text
from paceline.sweeps.results.ranking import Spread
from paceline.sweeps.trial import Trial, TrialState

NAMED_TRIALS = 3
"""How many trials of one reason are named, at most."""


def axis_keys(trials: Iterable[Trial]) -> list[str]:
    """The dotted keys that the trials vary, the seed left out, in the order in which they first come up."""
    return list(dict.fromkeys(key for trial in trials for key in trial.params if key != "seed"))


def counts_text(trials: Sequence[Trial], states: Sequence[str] = get_args(TrialState)) -> str:
    """How many trials are in each of the states, those that occur: `29 finished (3 infeasible), 1 failed`."""
    infeasible = sum(trial.is_feasible is False for trial in trials)
    return states_text(Counter[str](trial.state for trial in trials), states, infeasible)


def states_text(
    counts: Mapping[str, int], states: Sequence[str] = get_args(TrialState), num_infeasible: int = 0
) -> str:
    """The same for trials that are counted already, by state.

    Args:
        num_infeasible: how many of the finished ones break a constraint.
    """
    of_these = {"finished": f" ({num_infeasible} infeasible)" if num_infeasible else ""}
    return ", ".join(
        f"{counts[state]} {state_text(state)}{of_these.get(state, '')}" for state in states if counts.get(state)
    )


def summary_text(best: Trial, spreads: Mapping[str, Spread], names: Mapping[str, str]) -> str:
    """A setting in one line: `0007 (lr=0.1): val/accuracy 0.9731 ± 0.0012 over 3 seeds`.

    Args:
        best: its best trial. Its seed is left out where the values are means, which are those of no single seed.
        spreads: the metrics to tell, over its finished trials.
        names: short names of the axes, by dotted key.
    """
    count = max(spread.n for spread in spreads.values())
    values = [f"{metric} {spread_text(spread.mean, spread.std, spread.n)}" for metric, spread in spreads.items()]
    over = f" over {count} {'seeds' if 'seed' in best.params else 'trials'}" if count > 1 else ""
    setting = setting_text(best.setting if count > 1 else best.params, names)
    return f"{best.id}{f' ({setting})' if setting else ''}: {', '.join(values)}{over}"


def reasons_text(trials: Sequence[Trial], width: int) -> str:
    """Why trials ended in one state, in one line of at most `width` characters: `2 failed: 0003, 0007 no room`."""
    ids: dict[str, list[str]] = {}
    for trial in trials:
        ids.setdefault(" ".join(trial.reason.split()), []).append(trial.id)
    most_first = sorted(ids.items(), key=lambda item: -len(item[1]))
    parts = [f"{_ids_text(own)} {reason}".rstrip() for reason, own in most_first]
    return shortened(f"{len(trials)} {state_text(trials[0].state)}: {'; '.join(parts)}", width)


def _ids_text(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMED_TRIALS]) + (", …" if len(ids) > NAMED_TRIALS else "")
