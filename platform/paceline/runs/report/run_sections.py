"""A run's story as the sections of a page: the outcome first."""

import shlex

from paceline.runs.report.attempts import attempts_section, changed_words, resumed_words
from paceline.runs.report.costs import cost_table
from paceline.runs.report.html import Child, tag
from paceline.runs.report.numbers import bytes_text, count_text, counted, formatter, seconds_text
from paceline.runs.report.origin import origin_section
from paceline.runs.report.parts import Report, Section, code, facts, more, page_link, table, time_text
from paceline.runs.report.reading import CONFIG_FILE, reason_of
from paceline.runs.report.run_charts import run_charts
from paceline.runs.report.run_metrics import OF_TRAINING, best_of, metrics_table
from paceline.runs.report.run_story import RunStory
from paceline.runs.report.speeds import measured_section
from paceline.tracking import metrics
from paceline.tracking.curves import Curve
from paceline.tracking.provenance import config_not_in_commit
from paceline.tracking.uploads import ARTIFACT_FOLDER

LONGEST_REASON = 4000
_TILES = {
    metrics.SAMPLES_PER_SECOND_OVERALL: ("samples/s", "without warm-up"),
    metrics.SAMPLES_PER_SECOND: ("samples/s at the end", ""),
    metrics.PEAK_MEMORY_BYTES: ("peak memory", ""),
}
"""Figures beside those of the validation, and what is said with them."""
_DERIVED = "derived."
_CHECK = (
    "The first 16 digits: compare them with what sha256sum prints for the file model.safetensors in the folder. "
    "The SHA-256 of the weights at the end, below, is that of the numbers alone, and no file's."
)
_SAME = " of the numbers, not of a file: compare it with weights_sha256 of another run"


def run_report(story: RunStory) -> Report:
    """What the page of a run shows."""
    told = story.told
    sections = [
        Section("metrics", "Metrics", metrics_table(story.told.curves)),
        Section(
            "curves",
            "Curves",
            run_charts(told.curves, [each.step for each in told.resumes]),
            "Point at a line to see a value. Long curves keep their extremes.",
        ),
        *attempts_section(story),
        *_cost(story),
        *measured_section(told.tags),
        Section("checkpoints", "Checkpoints", _checkpoints(story)),
        Section("config", "Config", _config(story)),
        Section("again", "How to get it again", _again(story)),
        origin_section(told, _places(story)),
    ]
    return Report(
        kind=story.kind,
        name=story.name,
        id=story.id,
        status=story.status,
        subtitle=_subtitle(story),
        answer=_answer(story),
        tiles=_tiles(story),
        sections=sections,
        warnings=told.warnings,
    )


def _subtitle(story: RunStory) -> str:
    began, seconds = time_text(story.started_ms), story.seconds
    pause = f", {_pause(story)}" if story.told.resumes else ""
    took = f"took {seconds_text(seconds)}{pause}" if seconds else ""
    return " · ".join(filter(None, [f"started {began}" if began else "", resumed_words(story), took]))


def _pause(story: RunStory) -> str:
    return f"{seconds_text(story.told.paused_seconds)} of it between its {len(story.told.resumes) + 1} attempts"


def _answer(story: RunStory) -> list[Child]:
    steps = max((curve.newest[0] for curve in story.told.curves.values()), default=0.0)
    lines: list[Child] = [
        tag(
            "p",
            f"{story.status.capitalize()} after {counted(int(steps), 'optimizer step')}",
            class_="headline",
            data_status=story.status,
            data_step=int(steps),
        )
    ]
    values = [(key, curve) for key, curve in story.told.curves.items() if key.startswith("val/")]
    values = values or [(key, curve) for key, curve in story.told.curves.items() if key == metrics.TRAIN_LOSS]
    if values:
        lines.append(tag("p", "; ".join(_best_words(story, key, curve) for key, curve in sorted(values))))
    if resumed := resumed_words(story):
        changed = changed_words(story)
        lines.append(tag("p", f"It was {resumed}", f"; changed on the way: {changed}" if changed else "", "."))
    diverged = story.told.tags.get(metrics.DIVERGED) or _first_odd(story)
    if diverged:
        lines.append(tag("p", "It diverged: ", diverged, ".", data_diverged=True))
    if reason := reason_of(story.told):
        lines.append(code(reason[:LONGEST_REASON]))
    return lines


def _best_words(story: RunStory, key: str, curve: Curve) -> str:
    text, best = formatter(key), best_of(key, curve)
    if best is None or best[1] == curve.newest[1]:
        return f"{key} {text(curve.newest[1])}"
    kept = {each.step for each in story.checkpoints}
    gone = " (no checkpoint of it is kept)" if kept and key.startswith("val/") and best[0] not in kept else ""
    return f"{key} {text(curve.newest[1])}, best {text(best[1])} at step {best[0]:,.0f}{gone}"


def _first_odd(story: RunStory) -> str:
    odd = {key: curve.first_odd for key, curve in story.told.curves.items() if curve.first_odd is not None}
    odd = {key: step for key, step in odd.items() if key.startswith(OF_TRAINING)}
    return "".join(f"{key} is not finite at step {step:,.0f}" for key, step in sorted(odd.items())[:1])


def _tiles(story: RunStory) -> list[tuple[str, Child, str]]:
    curves = story.told.curves
    tiles: list[tuple[str, Child, str]] = []
    for key in [key for key in sorted(curves) if key.startswith("val/")][:3]:
        best = best_of(key, curves[key])
        words = f"best {formatter(key)(best[1])}" if best else ""
        tiles.append((key, formatter(key)(curves[key].newest[1]), words))
    for key, (label, words) in _TILES.items():
        if key in curves:
            tiles.append((label, formatter(key)(_figure(key, curves[key])), words))
    if story.ledger is not None and story.ledger.allocated:
        price = f"price {story.ledger.price:,.4g}" if story.ledger.price is not None else ""
        tiles.append((f"{story.ledger.unit} time", seconds_text(story.ledger.allocated), price))
    if story.seconds:
        tiles.append(("wall time", seconds_text(story.seconds), _pause(story) if story.told.resumes else ""))
    return tiles


def _figure(key: str, curve: Curve) -> float:
    """The newest value; of the memory the highest one, since a resumed run begins to look for it again."""
    place = curve.highest if key == metrics.PEAK_MEMORY_BYTES else None
    return (place or curve.newest)[1]


def _cost(story: RunStory) -> list[Section]:
    if story.ledger is None or not story.ledger.allocated:
        return []
    return [Section("cost", "Cost", cost_table(story.ledger))]


def _checkpoints(story: RunStory) -> Child:
    if not story.checkpoints:
        return tag("p", "There is none in the run's folder.")
    heading = [("step", True), ("size", True), ("SHA-256 of model.safetensors", False), ("folder", False)]
    rows: list[list[tuple[Child, float | None]]] = [
        [
            (count_text(each.step), each.step),
            (bytes_text(each.size_bytes) if each.size_bytes is not None else "no readable manifest", each.size_bytes),
            (tag("code", each.weights[:16]), None),
            (tag("code", str(each.folder)), None),
        ]
        for each in story.checkpoints
    ]
    about = [{"data_checkpoint": each.step} for each in story.checkpoints]
    return [table(heading, rows, about=about), tag("p", _CHECK, class_="quiet")]


def _config(story: RunStory) -> list[Child]:
    parts: list[Child] = []
    derived = {
        key.removeprefix(_DERIVED): value for key, value in story.told.params.items() if key.startswith(_DERIVED)
    }
    if derived:
        parts += [
            tag("h3", "What follows from it"),
            facts([(key.replace("_", " "), value) for key, value in derived.items()]),
        ]
    if changed := story.told.tags.get(metrics.CHANGED_PARAMS):
        parts += [tag("h3", "What was changed on the way"), code(changed)]
    if story.config:
        parts += [tag("h3", "The config"), code(story.config)]
    elif story.told.params:
        rows = [
            (key, tag("code", value))
            for key, value in sorted(story.told.params.items())
            if not key.startswith(_DERIVED)
        ]
        parts += [more("All params", facts(rows), opened=True)]
    return parts or [tag("p", "It is not in the run's folder.")]


def _again(story: RunStory) -> list[Child]:
    tags = story.told.tags
    command = tags.get(metrics.COMMAND)
    if not command:
        return [tag("p", "The command that started it is not known.")]
    lines = [f"git checkout {tags[metrics.GIT_COMMIT]}"] if tags.get(metrics.GIT_COMMIT) else []
    dirty = tags.get(metrics.GIT_DIRTY) == "true"
    doubt = tag("p", "Files had been changed since that commit, see below.", class_="quiet") if dirty else None
    missing, recorded = config_not_in_commit(tags), story.told.folder / ARTIFACT_FOLDER / CONFIG_FILE
    if not story.config or (not missing and story.kind != "trial"):
        return [code("\n".join([*lines, command]), "command"), doubt]
    why = ["The commit does not have ", tag("code", missing), " as it was. "] if missing else None
    own = [why, "This is the config as it was recorded, the command line's own values in it", _hidden(story), "."]
    again = f"uv run paceline train {shlex.quote(str(recorded))}"
    return [
        code("\n".join([*lines, again]), "command"),
        tag("p", own, class_="quiet"),
        tag("p", "It was started by ", tag("code", command), ".", class_="quiet"),
        doubt,
    ]


def _hidden(story: RunStory) -> str:
    return "; write the secrets into it where it has ***" if "***" in story.config else ""


def _places(story: RunStory) -> list[tuple[str, Child]]:
    rows: list[tuple[str, Child]] = [("folder", tag("code", str(story.folder)))]
    if weights := story.outcome.get("weights_sha256"):
        rows.append(
            ("SHA-256 of the weights at the end", [tag("code", str(weights)), tag("span", _SAME, class_="quiet")])
        )
    return (
        [*rows, ("MLflow", page_link(story.told.url, story.told.needs_ui, story.told.url))] if story.told.url else rows
    )
