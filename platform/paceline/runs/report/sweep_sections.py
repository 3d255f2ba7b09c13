"""A sweep's story as the sections of a page: the answer first."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from paceline.runs.report.html import Child, tag
from paceline.runs.report.numbers import count_text, counted, seconds_text
from paceline.runs.report.origin import origin_section
from paceline.runs.report.parts import Report, Section, changes, code, more, page_link, time_text
from paceline.runs.report.reading import reason_of
from paceline.runs.report.speeds import compared_section
from paceline.runs.report.sweep_charts import pictures
from paceline.runs.report.sweep_endings import cost_of, unfinished_section
from paceline.runs.report.sweep_story import SweepStory
from paceline.runs.report.sweep_table import how_ranked, ranking_table
from paceline.sweeps.results import labels, trial_texts
from paceline.sweeps.results.ranking import SettingSummary
from paceline.sweeps.trials import ENDED

LONGEST_NAME = 140
"""Characters of a setting in a sentence."""


def sweep_report(story: SweepStory) -> Report:
    """What the page of a sweep shows."""
    result, told = story.result, story.told
    sections = [
        Section("ranking", "Ranking", ranking_table(story), how_ranked(story)),
        Section(
            "pictures", "Pictures", pictures(story), "Point at a line, a dot or a cell to see its setting and value."
        ),
        *_best_section(story),
        *unfinished_section(story),
        Section("cost", "Cost", cost_of(story)),
        *_speeds(story),
        origin_section(told, _places(story)),
    ]
    return Report(
        kind="sweep",
        name=result.name,
        id=result.sweep_id,
        status=result.status,
        subtitle=_subtitle(story),
        answer=_answer(story),
        tiles=_tiles(story),
        sections=sections,
        warnings=told.warnings,
    )


def _subtitle(story: SweepStory) -> str:
    start, resumes = story.told.started_ms(story.result.sweep_id), story.told.resumes
    seconds = story.told.seconds_since(start) if resumes else story.result.wall_seconds
    parts = [
        f"started {time_text(start)}" if start else "",
        f"resumed {counted(len(resumes), 'time')}" if resumes else "",
        f"took {seconds_text(seconds)}" if seconds else "",
        f"{seconds_text(story.told.paused_seconds)} of it between its launches" if resumes else "",
    ]
    return " · ".join(filter(None, [*parts, reason_of(story.told)]))


def _answer(story: SweepStory) -> list[Child]:
    """The best setting, and what it is better than."""
    if not story.ranked:
        states = trial_texts.counts_text(story.result.trials) or "none has begun"
        return [
            tag("p", "No best setting yet: no trial has finished with a value.", class_="headline"),
            tag("p", f"Trials: {states}."),
        ]
    best, *others = story.ranked
    metrics = [metric for metric, _ in story.result.objectives]
    values = ", ".join(f"{metric} {_spread(best, metric)}" for metric in metrics)
    lines: list[Child] = [
        tag("p", "Best: ", _setting(story, best), class_="headline", data_trials=_ids(best)),
        tag("p", tag("b", values), f" ({_seeds(best)})"),
    ]
    if not others:
        return [*lines, tag("p", "There is no other finished setting to compare it with.")]
    first = metrics[0]
    following = f"{_setting(story, others[0])} with {_spread(others[0], first)}"
    compared = f"It beats {counted(len(others), 'other finished setting')}: next is {following}"
    worst = _worst(story, others)
    last = f", the worst is {_setting(story, worst)} with {_spread(worst, first)}" if worst is not others[0] else ""
    compared = f"{compared}{last}."
    return [*lines, tag("p", compared, _doubt(story), data_others=len(others), data_next=_ids(others[0]))]


def _ids(summary: SettingSummary) -> str:
    return " ".join(trial.id for trial in summary.trials)


def _worst(story: SweepStory, others: Sequence[SettingSummary]) -> SettingSummary:
    """By the first objective alone, whatever the number of seeds."""
    metric, mode = story.result.objectives[0]
    choose = min if mode == "max" else max
    return choose(others, key=lambda summary: summary.spreads[metric].mean)


def _doubt(story: SweepStory) -> str:
    """Whether the first two differ by more than their seeds do."""
    metric = story.result.objectives[0][0]
    one, other = (summary.spreads[metric] for summary in story.ranked[:2])
    if one.n < 2 or other.n < 2 or abs(one.mean - other.mean) > max(one.std, other.std):
        return ""
    return " The first two differ by less than their seeds do: take them as equal."


def _setting(story: SweepStory, summary: SettingSummary) -> str:
    names = labels.short_names(trial_texts.axis_keys(story.result.trials))
    return labels.shortened(labels.setting_text(summary.setting, names) or "as configured", LONGEST_NAME)


def _spread(summary: SettingSummary, metric: str) -> str:
    spread = summary.spreads[metric]
    return labels.spread_text(spread.mean, spread.std, spread.n) if spread.n else ""


def _seeds(summary: SettingSummary) -> str:
    return counted(
        len(summary.finished), "seed" if any("seed" in trial.overrides for trial in summary.trials) else "trial"
    )


def _tiles(story: SweepStory) -> list[tuple[str, Child, str]]:
    result = story.result
    counts = Counter(trial.state for trial in result.trials)
    rest = trial_texts.counts_text(
        result.trials,
        [state for state in dict.fromkeys((*ENDED, "running", "paused", "pending")) if state != "finished"],
    )
    tiles: list[tuple[str, Child, str]] = []
    if story.ranked:
        metric, mode = result.objectives[0]
        tiles.append(
            (
                f"best {metric}",
                _spread(story.ranked[0], metric),
                "higher is better" if mode == "max" else "lower is better",
            )
        )
    tiles.append(("trials", f"{counts['finished']} of {len(result.trials)} finished", rest))
    tiles.append(
        (
            "settings",
            count_text(len(story.ranked) + len(story.others)),
            counted(len(trial_texts.axis_keys(result.trials)), "axis", "axes"),
        )
    )
    if story.ledger is not None and story.ledger.allocated:
        price = f"price {story.ledger.price:,.4g}" if story.ledger.price is not None else "everything counted in"
        tiles.append((f"{story.ledger.unit} time", seconds_text(story.ledger.allocated), price))
    else:
        tiles.append(
            ("time on workers", seconds_text(sum(trial.seconds for trial in result.trials)), "of all trials together")
        )
    tiles.append(
        ("samples", labels.number_text(sum(trial.samples for trial in result.trials)), "of all trials together")
    )
    if result.wall_seconds:
        tiles.append(("wall time", seconds_text(result.wall_seconds), ""))
    return tiles


def _best_section(story: SweepStory) -> list[Section]:
    if not story.ranked:
        return []
    parts: list[Child] = []
    if story.command:
        parts += [tag("h3", "To train it"), code(story.command, "command")]
    if story.changes:
        parts += [
            tag("h3", "What it has otherwise than the sweep's own config"),
            changes(story.changes, ("sweep's config", "best")),
        ]
    if story.best_yaml:
        parts.append(
            more(f"The whole config ({Path(story.result.best_config_path).name})", code(story.best_yaml), opened=True)
        )
    return [Section("best", "Best config", parts)] if parts else []


def _speeds(story: SweepStory) -> list[Section]:
    return [compared_section(story.speeds)] if story.speeds is not None else []


def _places(story: SweepStory) -> list[tuple[str, Child]]:
    result = story.result
    rows: list[tuple[str, Child]] = [("folder", tag("code", str(result.folder)))]
    if result.best_config_path:
        rows.append(("best config", tag("code", result.best_config_path)))
    return (
        [*rows, ("MLflow", page_link(story.told.url, story.told.needs_ui, story.told.url))] if story.told.url else rows
    )
