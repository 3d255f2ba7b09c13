"""Whether `paceline scale` finds what a whole grid finds, and what measuring the noise scale costs a training.

    uv run python jobs/benchmarks/batch_size.py

All of it in one process, for any config that `scale` takes; takes some ten minutes on two cores.

grid    the config is trained with each batch size, learning-rate rule and seed, for its whole length. Of each batch
        size, the best rule counts: samples to the target (median over the seeds), and seconds, as these samples times
        the time of one. Then `scale` runs with the same target. Shown is what it predicts for each batch size beside
        what the grid measured, the critical batch size fitted to either, and the samples that both spent. Errors of
        samples count up to the critical batch size, and for the next larger batch in any case. The best of
        so many cells is partly the luckiest one, so that the recommendation, the grid's best and the config as it is
        are trained again with `--fresh` further seeds, and compared seed by seed: times and steps to the target, and
        the metric at the end. `--picture FILE` draws the samples to the target. `--cells FILE` takes the cells from a
        record: another version of `scale` is judged by the same grid.
noise   steps of the same config with two micro-batches: `off`, `off again` (A/A), and `on` with `trainer.noise_scale`,
        in turns. Shown is the time of a step over that of `off` in the same round.
"""

import json
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from batch_grid import (
    RULES,
    WINDOW_SECONDS,
    WINDOWS,
    Cell,
    Training,
    best_of,
    cell_overrides,
    grid_critical_batch,
    measured_grid,
    recorded_grid,
    stages_of,
    trained,
)
from harness import Benchmark, Interval, Part, Target, estimate, exactly, ratio, take_turns

from paceline import load_config
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.scale import scale
from paceline.batch_scaling.segment import look
from paceline.batch_scaling.stored_findings import findings_json
from paceline.bench.stepper import Stepper
from paceline.bench.throughput import throughput
from paceline.cluster.listener import SilentListener
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "mnist_batch_lr.yaml"
TARGET = "val/accuracy=0.96"
DOUBLINGS = 6
MOST_COST, MOST_SHARE, MOST_ERROR, MOST_SLOWER, MOST_STEPS = 1.02, 0.1, 0.25, 1.1, 0.8
TURNS = 5
FRESH_FROM = 1000
"""Seeds of the fresh trainings begin here, away from those of the grid."""


@dataclass(frozen=True)
class Fresh:
    """A changed config, trained with seeds that the grid has not used."""

    trainings: Sequence[Training]
    seconds: Sequence[float]
    """Seconds to the target for each seed; those of the whole length where it was not reached."""
    steps: Sequence[float]
    """Optimizer steps, likewise."""


def trained_afresh(plan: StudyPlan, changes: Sequence[Mapping[str, Any]], seeds: int) -> list[Fresh]:
    """Train changed configs with seeds that the grid has not used; equal ones are trained once."""
    configs = [plan.config.with_overrides({**each, "scale": None}) for each in changes]
    places = [(number, size) for number, config in enumerate(configs) for _, size in stages_of(config)]
    one_size = {"data.batch_size_schedule": None}
    fixed = [configs[number].with_overrides({**one_size, "data.global_batch_size": size}) for number, size in places]
    options = {"windows": WINDOWS, "window_seconds": WINDOW_SECONDS}
    windows = throughput(fixed * TURNS, options, DistContext.current())["seconds_per_sample"]
    seconds = {
        place: statistics.median(statistics.median(each) for each in windows[number :: len(places)])
        for number, place in enumerate(places)
    }
    first = plan.config.seed + FRESH_FROM
    found: list[Fresh] = []
    for number, (each, config) in enumerate(zip(changes, configs, strict=True)):
        if config in configs[:number]:
            found.append(found[configs.index(config)])
            continue
        trainings = [trained(plan, each, first + seed) for seed in range(seeds)]
        stages = stages_of(config)
        taken = [training.reached or plan.samples for training in trainings]
        of_a_sample = {size: seconds[number, size] for _, size in stages}
        steps = {size: 1 / size for _, size in stages}
        found.append(
            Fresh(
                trainings,
                [_summed(stages, samples, plan.samples, of_a_sample) for samples in taken],
                [_summed(stages, samples, plan.samples, steps) for samples in taken],
            )
        )
    return found


def _summed(stages: Sequence[tuple[int, int]], samples: int, longest: int, of_a_sample: Mapping[int, float]) -> float:
    """Sum over the first samples of a training what each of them costs.

    Args:
        longest: samples of the whole training.
        of_a_sample: by batch size.
    """
    ends = [begin for begin, _ in stages[1:]] + [longest]
    return sum(
        max(0, min(samples, end) - begin) * of_a_sample[size] for (begin, size), end in zip(stages, ends, strict=True)
    )


def draw(
    file: Path, cells: Sequence[Cell], longest: int, predicted: Mapping[int, float], critical: float, target: str
) -> None:
    """Draw the samples to the target over the batch size: of the grid by rule, and as predicted.

    Args:
        longest: samples of a training; where the target was not reached, a mark is drawn there.
    """
    from paceline.reports import theme
    from paceline.reports.xy_chart import XYAxis, XYCurve, XYMark, XYPoints, xy_chart

    curves = [XYCurve("predicted by scale", sorted(predicted.items()), theme.QUIET, is_dashed=True)]
    points = []
    for number, (rule, color) in enumerate(zip(RULES, theme.SERIES, strict=False)):
        own = [cell for cell in cells if cell.rule == rule]
        places = [(cell.size, cell.median) for cell in own if cell.median is not None]
        missed = [(cell.size, longest * 1.04**number) for cell in own if cell.median is None]
        if places:
            curves.append(XYCurve("", places, color))
            points.append(XYPoints(f"grid, {rule}", places, [""] * len(places), color))
        if missed:
            points.append(XYPoints(f"{rule}, not reached", missed, [""] * len(missed), color, "^"))
    sizes = sorted({cell.size for cell in cells})
    axes = XYAxis("global batch size", True, sizes), XYAxis(f"samples to {target}", True)
    marks = [XYMark(f"predicted critical batch size, {critical:,.0f}", critical)]
    file.write_bytes(xy_chart("Samples to the target over the batch size", axes, curves, points, [], marks).png())


def measure_grid(
    config: ExperimentConfig,
    seeds: int,
    doublings: int,
    fresh: int,
    picture: Path | None,
    record: Path | None,
    benchmark: Benchmark,
) -> Part:
    """Compare the answer of `scale` with the whole grid.

    Args:
        record: results of this config that have the cells of the grid; None: they are trained.
    """
    plan = StudyPlan.of(config, look([config], {}, DistContext.current()))
    own = plan.own_batch_size
    sizes = [size for size in (own * 2**number for number in range(doublings + 1)) if size <= plan.train_samples]
    grid, spent = recorded_grid(plan, record) if record else measured_grid(plan, sizes, seeds, benchmark)
    cells = best_of(grid)
    with tempfile.TemporaryDirectory() as folder:
        changed = config.with_overrides({"storage.path": folder, "tracking.uri": f"sqlite:///{folder}/mlflow.db"})
        found = scale(changed, listener=SilentListener()).findings
    predicted = {row.global_batch_size: row.samples for row in found.table if row.workers == found.workers}
    medians = {cell.size: cell.median for cell in cells if cell.median is not None}
    if own not in medians or len(medians) < 2:
        return Part((), [], failures={"grid": "the target is not reached, choose another one with --target"})
    critical = grid_critical_batch(
        {size: samples / medians[own] for size, samples in medians.items()},
        own,
        # they would have taken longer than the whole training
        at_least={cell.size: plan.samples / medians[own] for cell in cells if cell.median is None},
    )
    rows = [
        (
            cell.size,
            cell.rule,
            " ".join("-" if each is None else f"{each:,}" for each in cell.samples),
            f"{predicted[cell.size]:,.0f}" if cell.size in predicted else "",
            f"{predicted[cell.size] / cell.median - 1:+.0%}" if cell.size in predicted and cell.median else "",
            f"{(cell.median or 0) * cell.sample_seconds:.2f}" if cell.median else "",
        )
        for cell in cells
    ]
    largest = max(critical, min(size for size in medians if size > own))
    errors = [
        abs(predicted[size] / medians[size] - 1) for size in medians if size in predicted and own < size <= largest
    ]
    seconds = {cell.size: cell.median * cell.sample_seconds for cell in cells if cell.median is not None}
    best = min((cell for cell in cells if cell.size in seconds), key=lambda cell: seconds[cell.size])
    # the config's own batch is the same with each rule
    best_changes = {} if best.size == own else cell_overrides(plan, best.size, best.rule)
    settings = [found.recommended, best_changes, {}]
    recommended_fresh, best_fresh, own_fresh = trained_afresh(plan, settings, fresh)
    slower = _ratio_by_seed(recommended_fresh.seconds, best_fresh.seconds)
    fewer = _ratio_by_seed(recommended_fresh.steps, own_fresh.steps)
    better = [
        mine.quality - theirs.quality
        for mine, theirs in zip(recommended_fresh.trainings, own_fresh.trainings, strict=True)
    ]
    recommended = stages_of(plan.config.with_overrides({**found.recommended, "scale": None}))
    chosen = ", ".join(f"{size:,} from {begin:,} samples" if begin else f"{size:,}" for begin, size in recommended)
    ours = found.critical.size if found.critical is not None else float("inf")
    targets = [
        Target("median error of the samples up to the critical batch", exactly(statistics.median(errors)), MOST_ERROR),
        Target("critical batch size over that of the grid", exactly(ours / critical), 2.0, 0.5),
        Target(
            f"time with batch {chosen} over that of the grid's best, {best.size:,}, over {fresh} fresh seeds",
            slower,
            MOST_SLOWER,
        ),
        Target(f"steps to the target with batch {chosen} over those of the config as it is", fewer, MOST_STEPS),
        Target("samples spent over those of the grid", exactly(found.samples_spent / spent), MOST_SHARE),
    ]
    if picture is not None:
        draw(picture, grid, plan.samples, predicted, ours, found.target.text)
    notes = [
        f"target {found.target.text}; critical batch size {ours:,.0f}, of the grid {critical:,.0f}",
        f"learning-rate rules: {found.rules.text}",
        f"{found.target.name} at the end, over {fresh} fresh seeds: as recommended minus as it is"
        f" {_mean_by_seed(better)}",
        f"`scale` spent {found.samples_spent:,} samples, the grid {spent:,}",
        *found.notes,
    ]
    columns = ("batch", "best rule", "samples to the target", "predicted", "error", "seconds")
    raw = {
        "cells": [vars(cell) for cell in grid],
        "predicted": predicted,
        "critical": [ours, critical],
        "study": findings_json(found),
        "fresh": {"recommended": asdict(recommended_fresh), "best": asdict(best_fresh), "as it is": asdict(own_fresh)},
    }
    return Part(columns, rows, targets, notes=notes, raw=raw)


def _ratio_by_seed(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the geometric mean of the ratio, over the seeds."""
    return Interval(*map(exp, estimate([[log(one / other)] for one, other in zip(mine, theirs, strict=True)])))


def _mean_by_seed(differences: Sequence[float]) -> str:
    found = estimate([[each] for each in differences])
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def measure_noise(config: ExperimentConfig, rounds: int, steps: int, benchmark: Benchmark) -> Part:
    """Time of a step with and without the noise scale."""
    size = config.data.global_batch_size
    assert isinstance(size, int)
    halves = {"data.micro_batch_size": size // 2, "trainer.gradient_accumulation_steps": "auto"}
    both = {name: config.with_overrides({**halves, "trainer.noise_scale": name == "on"}) for name in ("off", "on")}
    steppers = {name: Stepper(both[name.split()[0]], DistContext.current()) for name in ("off", "off again", "on")}
    arms: dict[str, Callable[[], float]] = {
        name: partial(_step_seconds, each, steps) for name, each in steppers.items()
    }
    for arm in arms.values():
        arm()
    seconds, _ = take_turns(arms, rounds, after_round=benchmark.say_round)
    ratios = {name: ratio([values], [seconds["off"]]) for name, values in seconds.items()}
    rows = [(name, f"{1000 * statistics.median(seconds[name]):.3f}", each) for name, each in ratios.items()]
    target = Target("time of a step with the noise scale", ratios["on"], MOST_COST)
    return Part(("arm", "ms a step", "ratio to off"), rows, [target], raw=seconds)


def _step_seconds(stepper: Stepper, steps: int) -> float:
    return stepper.run(steps).seconds / steps


def main() -> int:
    """Measure, and print the tables."""
    parts = ("grid", "noise")
    benchmark = Benchmark("batch_size", __doc__, ("torch", "paceline"), parts=parts)
    benchmark.parser.add_argument("--config", type=Path, default=CONFIG, help="of the training")
    benchmark.parser.add_argument("--target", default=TARGET, help="metric=value, of `scale` and of the grid")
    benchmark.parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the config")
    benchmark.parser.add_argument("--picture", type=Path, metavar="FILE", help="PNG of the part grid")
    text = "results.json of a record with the same config, to take the cells of the grid from"
    benchmark.parser.add_argument("--cells", type=Path, metavar="FILE", help=text)
    benchmark.number("--seeds", 3, 2, "of each cell of the grid", least=2)
    benchmark.number("--doublings", DOUBLINGS, 2, "of the config's batch size in the grid")
    benchmark.number("--fresh", 16, 2, "seeds of the fresh trainings", least=2)
    benchmark.number("--budget", 3600, 300, "seconds of `scale`", least=10)
    benchmark.number("--rounds", 60, 3, "of the part noise")
    benchmark.number("--steps", 50, 10, "of a turn of the part noise")
    args = benchmark.parse()
    warnings.simplefilter("ignore")
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    metric, _, value = args.target.partition("=")
    given = [*args.set, *(("trainer.epochs=2", "scale.seeds=2") if args.quick else ())]
    config = load_config(args.config, overrides=["scaling.num_workers=0", *given])
    goal = {"target": {metric: 0.9 if args.quick else float(value)}, "budget_seconds": args.budget}
    section: Mapping[str, Any] = {**json.loads(config.scale.model_dump_json() if config.scale else "{}"), **goal}
    config = config.with_overrides({"sweep": None, "tuneup": None, "scale": section})
    measures = {
        "grid": lambda: measure_grid(
            config, args.seeds, args.doublings, args.fresh, args.picture, args.cells, benchmark
        ),
        "noise": lambda: measure_noise(config, args.rounds, args.steps, benchmark),
    }
    return benchmark.finish({part: measure() for part, measure in measures.items() if part in (args.parts or parts)})


if __name__ == "__main__":
    sys.exit(main())
