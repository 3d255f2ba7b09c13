"""Text of a sweep's result: its ranking, the states of its trials, and why some did not finish.

For the terminal, logs and notebooks. Values are as they are: whoever prints them hides secrets.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from statistics import fmean
from typing import get_args

from paceline.redaction import redact, redact_tree
from paceline.sweeps.results import ranking
from paceline.sweeps.results.labels import setting_text, short_names, shortened, spread_text, state_text, value_text
from paceline.sweeps.results.ranking import Objective, SettingSummary, Spread
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import Trial, axis_keys, planned_order

FRONT_ROWS = 10
"""Settings of the Pareto front that are shown, at most."""
RANKED_ROWS = 20
"""Settings that are shown in the ranking, at most."""
RANKED_METRICS = 3
"""Objectives that the ranking shows, the first ones."""
TEXT_WIDTH = 106
"""Characters of a line of the ranking: with the labels before it, it fits 120 columns."""
NAMED_TRIALS = 3
"""Trials of one reason that are named, at most."""
EQUAL_GROUPS = 3
"""Groups of trials with the same weights that are named, at most."""
LEAST_VALUES = 3
"""Different values of an axis from which on it has an edge that is not half of it."""
GAP = "  "
LEAST_WIDTH = 12
"""Characters that the column of a table keeps which gives way."""
SPEED = "samples_per_second"
_NOT_FINISHED: tuple[TrialState, ...] = ("pruned", "failed", "oom", "diverged", "skipped", "predicted_oom")
_SETTING_COLUMN = 2
_LEFT = "text-align:left"

Rows = list[tuple[str, str]]
"""Label and text."""


class ResultText:
    """Text about the trials of a sweep."""

    def __init__(self, trials: Sequence[Trial], objectives: Sequence[Objective]) -> None:
        self._trials, self._objectives = sorted(trials, key=planned_order), objectives
        self._names = short_names(axis_keys(trials))
        self._has_constraints = any(trial.violations for trial in trials)
        self._shown_metrics = [metric for metric, _ in objectives[:RANKED_METRICS]]

    @cached_property
    def ranked(self) -> list[SettingSummary]:
        """The settings, best first."""
        return ranking.ranked(self._trials, self._objectives)

    @property
    def best(self) -> str:
        """The best setting in one line, see `summary_text`; empty when there is none."""
        best = ranking.best_setting(self._trials, self._objectives)
        return self._summary_text(best) if best else ""

    @property
    def constraints(self) -> str:
        """Each constraint, and how many finished trials break it; empty without any."""
        finished = [trial for trial in self._trials if trial.state == "finished"]
        broken = Counter(text for trial in finished for text in trial.broken)
        texts = dict.fromkeys(text for trial in self._trials for text in trial.violations)
        return ", ".join(f"{text} (broken by {broken[text]} of {len(finished)})" for text in texts)

    def front_rows(self) -> Rows:
        """The settings of the Pareto front."""
        front = ranking.front(self._trials, self._objectives)
        texts = [self._summary_text(summary) for summary in front[:FRONT_ROWS]]
        more = len(front) - len(texts)
        return _labelled("Pareto front", (texts + ([f"and {more} more"] if more else [])) or ["none"])

    def ranking_rows(self) -> Rows:
        """The best settings, as lines of a table."""
        if not self.ranked:
            return []
        table = self._ranking if table_width(self._ranking) <= TEXT_WIDTH else self._with_values_alone
        lines = table_lines(table, TEXT_WIDTH, flexible=_SETTING_COLUMN)
        more = len(self.ranked) - RANKED_ROWS
        return _labelled("ranking", lines + ([f"... and {more} more"] if more > 0 else []))

    def unfinished_rows(self) -> Rows:
        """The trials that did not finish, and why."""
        by_state = [[trial for trial in self._trials if trial.state == state] for state in _NOT_FINISHED]
        return _labelled("not finished", [reasons_text(found, TEXT_WIDTH) for found in by_state if found])

    def equal_rows(self) -> Rows:
        """Settings that gave the same weights to the bit: the fields by which they differ have changed nothing."""
        found: dict[str, list[Trial]] = {}
        for trial in self._trials:
            if trial.state == "finished" and trial.weights_sha256:
                found.setdefault(trial.weights_sha256, []).append(trial)
        equal = [trials for trials in found.values() if len(trials) > 1]
        texts = [_ids_text([trial.id for trial in trials], " = ") for trials in equal[:EQUAL_GROUPS]]
        more = [f"and {len(equal) - EQUAL_GROUPS} more groups"] if len(equal) > EQUAL_GROUPS else []
        return _labelled("same weights", [*texts, *more])

    def edge_rows(self) -> Rows:
        """Axes of numbers of which the best setting has the smallest or the largest value: beyond it may be a better
        one."""
        best = ranking.best_setting(self._trials, self._objectives)
        texts = []
        for key, name in self._names.items() if best else ():
            values = [trial.setting.get(key) for trial in self._trials if trial.state == "finished"]
            numbers = {each for each in values if isinstance(each, int | float) and not isinstance(each, bool)}
            value = best.setting.get(key) if best else None
            if len(numbers) >= LEAST_VALUES and value in (min(numbers), max(numbers)):
                which, beyond = ("smallest", "smaller") if value == min(numbers) else ("largest", "larger")
                texts.append(f"{name}={value_text(value)} is the {which} value tried: a {beyond} one may be better")
        return _labelled("at the edge", texts)

    def html(self, summary: Rows) -> str:
        """The rows of a summary, and the ranking, for a notebook."""
        rows = "".join(
            f"<tr><th style='{_LEFT}'>{escape(label)}</th><td style='{_LEFT}'>{html_cell(redact(value))}</td></tr>"
            for label, value in summary + self.unfinished_rows() + self.equal_rows() + self.edge_rows()
        )
        heading, *body = self._ranking
        more = len(self.ranked) - len(body)
        hidden = f"<p data-hidden='{more}'>... and {more} more, see <code>.table</code></p>" if more else ""
        return f"<table data-role='summary'>{rows}</table>" + (html_table(heading, body) if body else "") + hidden

    @cached_property
    def _ranking(self) -> list[list[str]]:
        """The best settings as cells of text, best first, after a row of headings."""
        seeds = "seeds" if any("seed" in trial.params for trial in self._trials) else "trials"
        speed = [] if SPEED in self._shown_metrics else ["samples/s"]
        feasible = ["feasible"] if self._has_constraints else []
        heading = ["rank", "trial", "setting", *self._shown_metrics, *feasible, seeds, *speed]
        return [heading, *(self._cells(rank, each) for rank, each in enumerate(self.ranked[:RANKED_ROWS], 1))]

    @property
    def _with_values_alone(self) -> list[list[str]]:
        """The ranking for long settings: the keys stand in the heading, so that the values have room."""
        texts = [", ".join(self._names.values())]
        for summary in self.ranked[:RANKED_ROWS]:
            setting = summary.setting
            texts.append(", ".join(value_text(setting[key]) if key in setting else "-" for key in self._names))
        return [[*row[:2], text, *row[3:]] for row, text in zip(self._ranking, texts, strict=True)]

    def _cells(self, rank: int, summary: SettingSummary) -> list[str]:
        spreads = [summary.spreads[metric] for metric in self._shown_metrics]
        texts = [spread_text(spread.mean, spread.std, spread.n) if spread.n else "" for spread in spreads]
        count, total = spreads[0].n, len(summary.trials)
        speeds = [trial.samples_per_second for trial in summary.finished if trial.samples_per_second]
        feasible = [f"no: {', '.join(summary.broken)}" if summary.broken else "yes"] if self._has_constraints else []
        return [
            "" if summary.broken else str(rank),
            ranking.best_seed(summary, self._objectives).id,
            setting_text(redact_tree(summary.setting), self._names),
            *texts,
            *feasible,
            str(count) if count == total else f"{count} of {total}",
            *([] if SPEED in self._shown_metrics else [f"{fmean(speeds):,.0f}" if speeds else ""]),
        ]

    def _summary_text(self, summary: SettingSummary) -> str:
        return summary_text(ranking.best_seed(summary, self._objectives), summary.spreads, self._names)


def _labelled(label: str, texts: Sequence[str]) -> Rows:
    return [(label if number == 0 else "", text) for number, text in enumerate(texts)]


def counts_text(trials: Sequence[Trial], states: Sequence[str] = get_args(TrialState)) -> str:
    """Return the number of trials in each of the states that occur: `29 finished (3 infeasible), 1 failed`."""
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
    """Return why trials ended in one state, in at most `width` characters: `2 failed: 0003, 0007 no room`."""
    ids: dict[str, list[str]] = {}
    for trial in trials:
        ids.setdefault(" ".join(trial.reason.split()), []).append(trial.id)
    most_first = sorted(ids.items(), key=lambda item: -len(item[1]))
    parts = [f"{_ids_text(own)} {reason}".rstrip() for reason, own in most_first]
    return shortened(f"{len(trials)} {state_text(trials[0].state)}: {'; '.join(parts)}", width)


def _ids_text(ids: Sequence[str], separator: str = ", ") -> str:
    return separator.join(ids[:NAMED_TRIALS]) + (f"{separator}…" if len(ids) > NAMED_TRIALS else "")


def table_width(table: Sequence[Sequence[str]]) -> int:
    """Characters of a line that holds all cells in full."""
    return sum(max(map(len, column)) + len(GAP) for column in zip(*table, strict=True)) - len(GAP)


def table_lines(table: Sequence[Sequence[str]], width: int, flexible: int) -> list[str]:
    """Rows of cells as aligned lines of at most `width` characters; it is the flexible column that gives way."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    others = sum(widths) - widths[flexible] + len(GAP) * (len(widths) - 1)
    widths[flexible] = min(widths[flexible], max(width - others, LEAST_WIDTH))
    lines = [
        GAP.join(f"{shortened(cell, size):<{size}}" for cell, size in zip(row, widths, strict=True)) for row in table
    ]
    return [shortened(line.rstrip(), width) for line in lines]


def html_table(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Rows of cells under a heading, for a notebook."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table data-role='ranking'><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def html_cell(value: str) -> str:
    """A text for a notebook, a link where it is one: `http://here (after a hint)`."""
    if not value.startswith(("http://", "https://")):
        return escape(value)
    link, _, hint = escape(value).partition(" ")
    return f'<a href="{link}" target="_blank">{link}</a> {hint}'
