"""All combinations of a tune-up's techniques, and how near its recommended config comes to the best of them.

    uv run paceline tuneup configs/mnist_naive.yaml
    uv run python jobs/benchmarks/exhaustive_search.py configs/mnist_naive.yaml --recommended recommended.yaml

It takes about half an hour for `configs/mnist_naive.yaml` on two CPU cores. All is measured without Ray, so that the
recommended config and the combinations are measured alike.

axes     Families of the techniques that `paceline tuneup` tries here; a combination has one technique of each, or none.
         Not axes: techniques that are tried to save memory, the fixes of a bottleneck, and what has an effect only
         beside others, such as a longer prefetch. Combinations that contradict themselves, or come to the same config
         as another one, are left out.
scan     Each combination against the config as it is, in random order and the compiled ones last: a pair of windows of
         half a second, in turns of some 30 ms. Of two pairs of a compiled one the better counts, since another batch
         size may be compiled in the first. Building and compiling come before the windows.
savers   `--savers N` draws N of the combinations that have a technique to save memory as well.
final    The fastest of the scan against the recommended config, in builds of fresh processes.
quality  From the fastest on, each finalist is trained over `tuneup.seeds` seeds beside the recommended config, until
         one is equivalent within `tuneup.margin`, or better: that is the best. It is compared with the recommended
         config once more, in builds that did not choose it. Those that are not taken are listed, with the reason.
target   The recommended config has at least 0.95 of the best one's speed.
"""

import random
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import product
from time import monotonic
from typing import NamedTuple

from harness import ArmFailed, Benchmark, Interval, Part, Target, estimate

from paceline.bench.bench import LocalBench
from paceline.bench.clock import Clock
from paceline.bench.jobs import Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import load_config
from paceline.config.tuneup import TuneupConfig
from paceline.direction import default_mode
from paceline.tuneups.combinations import together
from paceline.tuneups.facts import LOOK, TuneupFacts
from paceline.tuneups.folder import TUNEUP
from paceline.tuneups.quality_gate import RELATIVE_MARGINS
from paceline.tuneups.screening import BENCHMARK
from paceline.tuneups.statistics.equivalence import compare_quality
from paceline.tuneups.techniques import Technique, techniques_for
from paceline.tuneups.trainings import Trainings

LEAST_SHARE = 0.95
SHOWN = 10
WINDOW_SECONDS = 0.5
FINAL_PAIRS = 8
"""Pairs of windows of a build in the final."""
ENDLESS_SECONDS = 1e9


class Combination(NamedTuple):
    """One technique of each family, or none."""

    name: str
    config: ExperimentConfig

    @property
    def is_compiled(self) -> bool:
        """True if it takes long to build."""
        return bool(self.config.trainer.compile != "none")


class Scanned(NamedTuple):
    """Combination with its speed relative to the config as it is."""

    combination: Combination
    speedup: float


class ExhaustiveSearch:
    """The search for the best combination of the techniques of one config."""

    def __init__(self, config: ExperimentConfig, args: Namespace, benchmark: Benchmark) -> None:
        self.config, self._args, self._say = config, args, benchmark.say
        self._bench = LocalBench(config, TUNEUP)
        answer = self._bench.do(Job(LOOK, (part_of(config),)))
        if answer.problem:
            raise SystemExit(f"the config cannot be built: {answer.problem}")
        tried = [each for each in techniques_for(config, TuneupFacts(**answer.values)) if not each.why_not]
        known: set[str] = set()
        self.axes = by_family([each for each in tried if not each.saves_memory])
        self.combinations = list(combinations(config, self.axes, known))
        pool = list(combinations(config, by_family(tried), known)) if args.savers else []
        self.savers = random.Random(0).sample(pool, min(args.savers, len(pool)))
        self.failures: dict[str, str] = {}

    def scan(self, chosen: Sequence[Combination]) -> list[Scanned]:
        """Measure each combination once, and return those that could be measured, the fastest first."""
        order = random.Random(0).sample(list(chosen), len(chosen))
        found = []
        for number, each in enumerate(sorted(order, key=lambda each: each.is_compiled), 1):
            try:
                ratios = self._speedups(self.config, each.config, 2 if each.is_compiled else 1, number)
            except ArmFailed as failure:
                self.failures[each.name] = str(failure)
                continue
            found.append(Scanned(each, max(ratios)))
            self._say(f"{number} of {len(chosen)}: {each.name}: {max(ratios):.2f}")
        return sorted(found, key=lambda each: -each.speedup)

    def share(self, recommended: ExperimentConfig, combination: Combination, seed: int) -> Interval | None:
        """Return the recommended config's speed over that of a combination, over builds of fresh processes; None if one
        of them fails."""
        try:
            builds = [
                self._speedups(combination.config, recommended, FINAL_PAIRS, seed + number, is_fresh=True)
                for number in range(self._args.builds)
            ]
        except ArmFailed as failure:
            self.failures[combination.name] = str(failure)
            return None
        found = estimate(builds)
        self._say(f"the recommended config has {found} of the speed of {combination.name}")
        return found

    def _speedups(
        self, first: ExperimentConfig, second: ExperimentConfig, pairs: int, seed: int, is_fresh: bool = False
    ) -> list[float]:
        options = {"window_seconds": WINDOW_SECONDS, "min_pairs": pairs, "max_pairs": pairs, "seed": seed}
        options["is_technique_first"] = bool(seed % 2)
        job = Job(BENCHMARK, (part_of(first), part_of(second)), options, in_fresh_processes=is_fresh)
        answer = self._bench.do(job)
        if answer.problem:
            raise ArmFailed(answer.problem)
        return [before / after for before, after in answer.values["pairs"]]

    def best_of(self, ranked: Sequence[Combination], recommended: ExperimentConfig) -> tuple[Combination | None, str]:
        """Return the first that is equivalent to the recommended config or better, and the words for its quality."""
        trainings = Trainings(self._bench, Clock(ENDLESS_SECONDS, monotonic()), self.config)
        for each in ranked:
            if is_same(each.config, recommended):
                return each, "the recommended config itself, whose share is the noise"
            if not trainings.train(recommended):
                return None, f"the recommended config cannot be trained: {trainings.problem}"
            if not trainings.train(each.config):
                self.failures[each.name] = f"not taken: {trainings.problem}"
                continue
            ours, theirs = trainings.values(recommended), trainings.values(each.config)
            section, metric = self.config.tuneup or TuneupConfig(), trainings.metric
            mode = section.mode or default_mode(metric)
            margin = section.margin or RELATIVE_MARGINS[mode] * abs(sum(ours) / len(ours))
            found = compare_quality(ours, theirs, margin, mode)
            text = f"{metric} {found.verdict} over {found.seeds} seeds, difference {found.difference.estimate:+.4f}"
            self._say(f"{each.name}: {text}")
            if found.is_not_inferior:
                return each, text
            self.failures[each.name] = f"not taken: {text}"
        return None, ""


def by_family(techniques: Sequence[Technique]) -> dict[str, list[Technique]]:
    """Return the techniques of each family."""
    families: dict[str, list[Technique]] = {}
    for each in techniques:
        families.setdefault(each.family, []).append(each)
    return families


def combinations(config: ExperimentConfig, axes: dict[str, list[Technique]], known: set[str]) -> Iterator[Combination]:
    """Yield the combinations whose config is not known yet, and add it to the known ones."""
    for members in product(*([None, *axis] for axis in axes.values())):
        chosen = [each for each in members if each is not None]
        changed, taken = together(config, chosen)
        text = changed.model_dump_json()
        if len(taken) == len(chosen) and text not in known:
            known.add(text)
            yield Combination(" + ".join(each.name for each in chosen) or "as it is", changed)


def is_same(first: ExperimentConfig, second: ExperimentConfig) -> bool:
    """Return True if two configs train alike."""
    one, other = (each.with_overrides({"name": "same", "tuneup": None, "sweep": None}) for each in (first, second))
    return bool(one == other)


def search(args: Namespace, benchmark: Benchmark) -> Part:
    """Scan, hold the fastest against the recommended config, and make the table."""
    config = in_this_process(args.config)
    recommended = in_this_process(args.recommended or args.config)
    begun, found = monotonic(), ExhaustiveSearch(config, args, benchmark)
    scanned = found.scan(found.combinations[: args.combinations])
    scan_seconds = monotonic() - begun
    drawn = found.scan(found.savers)
    ranked = sorted([*scanned, *drawn], key=lambda each: -each.speedup)[: args.finalists]
    measured = [(each.combination, found.share(recommended, each.combination, 0)) for each in ranked]
    met = [(each, share) for each, share in measured if share is not None]
    best, quality = found.best_of([each for each, _ in sorted(met, key=lambda pair: pair[1].value)], recommended)
    again = found.share(recommended, best, args.builds) if best is not None else None
    shares = {each.name: share for each, share in met}
    rows = [
        (place, each.combination.name, f"{each.speedup:.2f}", shares.get(each.combination.name, ""))
        for place, each in enumerate(sorted([*scanned, *drawn], key=lambda each: -each.speedup)[:SHOWN], 1)
    ]
    own = [place for place, each in enumerate(scanned, 1) if is_same(each.combination.config, recommended)]
    notes = [
        f"axes: {'; '.join(f'{family}: {name_all(axis)}' for family, axis in found.axes.items())}",
        f"{len(scanned)} combinations were scanned in {scan_seconds:.0f} s, and {len(drawn)} with memory savers",
        f"the recommended config is number {own[0]} of the scan" if own else "the recommended config is not among them",
        f"best: {best.name if best else 'none'}; {quality}",
    ]
    raw = {each.combination.name: each.speedup for each in [*scanned, *drawn]}
    target = Target("recommended over best, speed", again, least=LEAST_SHARE)
    columns = ("place", "combination", "speed in the scan", "the recommended config's share of its speed")
    return Part(columns, rows, [target], notes=[*notes, *map(": ".join, found.failures.items())], raw=raw)


def name_all(techniques: Sequence[Technique]) -> str:
    """Return the names of techniques in a sentence."""
    return ", ".join(each.name for each in techniques)


def in_this_process(path: str) -> ExperimentConfig:
    """Load a config that trains without Ray."""
    return load_config(path).with_overrides({"scaling.num_workers": 0, "sweep": None})


def main() -> int:
    """Search, and print the table."""
    benchmark = Benchmark("exhaustive_search", __doc__, ("torch", "torchvision", "paceline"))
    benchmark.parser.add_argument("config", metavar="CONFIG", help="config of the tune-up")
    text = "recommended.yaml of the tune-up (the config as it is)"
    benchmark.parser.add_argument("--recommended", metavar="FILE", help=text)
    benchmark.number("--combinations", 100_000, 2, "of those without memory savers that are scanned")
    benchmark.number("--finalists", 8, 2, "of the scan")
    benchmark.number("--builds", 3, 2, "of a comparison in the final", least=2)
    benchmark.number("--savers", 64, 2, "combinations drawn that save memory", least=0)
    args = benchmark.parse()
    return benchmark.finish({"all combinations": search(args, benchmark)})


if __name__ == "__main__":
    sys.exit(main())
