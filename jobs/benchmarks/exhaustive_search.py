"""All combinations of the techniques that a tune-up tries, beside what the tune-up recommends.

    uv run python jobs/benchmarks/exhaustive_search.py CONFIG [KEY=VALUE ...] [--recommended recommended.yaml]
        [--tuneup-seconds 480] [--resume FILE [--minutes 5]] [--savers 64]

CONFIG is an experiment as for `paceline train`, such as configs/mnist_naive.yaml; KEY=VALUE changes it and the
recommended config alike. All is measured in this process (`scaling.num_workers: 0`), so that all is measured alike;
the recommended config may come from a tune-up with one worker under Ray.

axes         the techniques that `paceline tuneup` tries with this config here, by family: one of a family, or none of
             it. Techniques of `tuneup.arms` are axes, too. Left out: what the tune-up tries for the sake of memory
             (checkpointing, accumulation; see `savers`), fixes that it takes from the split of a step, and what has an
             effect only beside another technique (more batches ahead, beside loader processes). With them the search
             would take longer. Combinations whose members set the same field, or exclude each other, are left out.
scan         each combination once, in random order with the compiled ones last, in a duel with the config as it is:
             both in turns of some 30 ms, half a second each (twice, if it is compiled), so that what slows the machine
             down hits both alike. Building, compiling, filling the cache and starting loader processes come before the
             window. Compiled code is kept in a cache that is empty when the scan begins. With --resume each one's
             figures are written to FILE at once; the scan goes on there when it is started again with the same FILE,
             and with --minutes it stops after so long (exit code 75). --so-far concludes from what has been scanned by
             then, and says so.
time         what the scan took; and what it would take to train each combination once to the end of its epochs, which
             is how its accuracy becomes known. That is COMPUTED: start-up, and samples by measured speed, without
             evaluation, at the speed of the least disturbed tenth of the scan. Some drawn at random are trained to the
             end, to see how far the computed time is off.
             Aimed at: the tune-up took at most 0.1 of it. --tuneup-seconds says how long that was.
savers       with --savers N, N combinations with something that is tried for the sake of memory are measured, too: N
             drawn at random from all that have any and do not contradict themselves, in the order in which they were
             drawn. What is compiled comes from the cache, as for all but the first of its kind. Their figures go to
             FILE.savers, and the fastest of them come to the final as well. How long it would take to train all of
             them once is ESTIMATED from the N: the mean of their computed times, with its 95 % bootstrap interval,
             times the number of all.
final        the fastest of the scan in duels with the recommended config, eight pairs of windows each, by median with
             its 95 % bootstrap interval. Then from the fastest on, one is trained with some seeds beside the
             recommended config: the first whose metric is equivalent within `tuneup.margin`, or better, is the best.
             Further seeds are trained while nothing is decided. The duels with the best one are then fought anew,
             since the first ones have chosen it, and what chooses flatters.
             Aimed at: the recommended config has at least 0.95 of the best one's speed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exhaustive_axes import Product
    from exhaustive_journal import Scanned
    from exhaustive_measuring import Best, Check, Final

    from paceline.config.experiment import ExperimentConfig
    from paceline.study.tuneup.bench import Bench
    from paceline.study.tuneup.facts import Facts

TO_BE_CONTINUED = 75
"""Exit code when there is something left to scan (EX_TEMPFAIL of sysexits.h)."""
LONGEST_SECONDS = 1e9


class Search:
    """One exhaustive search."""

    def __init__(self, args: argparse.Namespace, file: Path) -> None:
        """Args:
        file: where the scan is written.

        Raises:
            PacelineError: the config is wrong, or cannot be built here.
            OtherSearch: the file is of another search.
        """
        from exhaustive_axes import product_of, savers_of
        from exhaustive_journal import Journal
        from exhaustive_measuring import look
        from exhaustive_savers import Drawn

        from paceline.study.tuneup.arms import arms_for
        from paceline.study.tuneup.bench import LocalBench, base_of

        self.args = args
        self.config = in_this_process(args.config, args.overrides)
        self.recommended = in_this_process(args.recommended, args.overrides) if args.recommended else None
        self.bench: Bench = LocalBench(base_of(self.config, None), self.config)
        self.facts: Facts = look(self.bench, self.config)
        arms = arms_for(self.config, self.facts)
        self.product: Product = product_of(self.config, arms)
        self.journal = Journal(file, head_of(self.config, self.product))
        self.drawn: Drawn | None = None
        if args.savers:
            product = savers_of(self.config, arms, self.product.combinations)
            journal = Journal(Path(f"{file}.savers"), head_of(self.config, product))
            self.drawn = Drawn(product, journal, min(args.savers, len(product.combinations)))

    def scan(self) -> bool:
        """Measure what has not been measured yet, and return whether that is all."""
        from exhaustive_measuring import compiled_last, scan

        seconds = LONGEST_SECONDS if self.args.minutes is None else 60 * self.args.minutes
        begun = time.monotonic()
        if not scan(self.bench, self.config, compiled_last(self.product.combinations), self.journal, seconds, say):
            return False
        if self.drawn is None:
            return True
        left = seconds - (time.monotonic() - begun)
        return scan(self.bench, self.config, self.drawn.combinations, self.drawn.journal, left, say, from_cache=True)

    def progress(self) -> str:
        """How much has been measured."""
        text = f"{len(self.journal.scanned)} of {len(self.product.combinations)} scanned"
        return text if self.drawn is None else f"{text}, {len(self.drawn.scanned)} of {self.drawn.asked} drawn"

    def recommended_name(self) -> str | None:
        """The combination that is the recommended config, where there is one."""
        from exhaustive_measuring import same_training

        if self.recommended is None:
            return None
        return next(
            (each.name for each in self.product.combinations if same_training(each.config, self.recommended)), None
        )

    def computed(self) -> dict[str, float]:
        """Seconds of one training of each combination, by name."""
        return self.seconds_of(self.journal.scanned)

    def seconds_of(self, scanned: "Sequence[Scanned]") -> dict[str, float]:
        """Seconds of one training of some of the combinations, by name, at the speed of the least disturbed part."""
        from exhaustive_figures import training_seconds, undisturbed_seconds

        undisturbed = undisturbed_seconds(self.journal.scanned)
        return training_seconds(scanned, samples_of(self.config, self.facts), undisturbed)

    def check(self) -> "Check":
        """Some combinations trained to the end."""
        from exhaustive_figures import uncompiled
        from exhaustive_measuring import check_computed

        names = uncompiled(self.journal.scanned, self.product.combinations)
        return check_computed(self.bench, self.product.combinations, self.computed(), names, self.args.checked)

    def final(self) -> "tuple[Final, Best | None] | None":
        """The fastest against the recommended config; None without one."""
        from exhaustive_figures import ranking
        from exhaustive_measuring import Final

        from paceline.study.tuneup.clock import Clock
        from paceline.study.tuneup.qualities import Trainings

        if self.recommended is None:
            return None
        by_name = {each.name: each for each in self.product.combinations}
        scanned = list(self.journal.scanned)
        if self.drawn is not None:
            by_name |= {each.name: each for each in self.drawn.combinations}
            scanned += self.drawn.scanned
        ranked = [by_name[each.name] for each in ranking(scanned)]
        trainings = Trainings(self.bench, Clock(LONGEST_SECONDS, time.monotonic()), self.config)
        trainings.seeds = [self.config.seed + number for number in range(self.args.seeds)]
        final = Final(self.bench, self.recommended, trainings, say)
        return final, final.find_best(ranked, self.args.finalists, self.args.pairs, self.args.duels)


def head_of(config: "ExperimentConfig", product: "Product") -> dict[str, Any]:
    """What must be the same when a scan goes on."""
    from exhaustive_measuring import WINDOW_SECONDS

    return {
        "config": config.with_overrides({"tuneup": None}).model_dump(mode="json"),
        "combinations": [each.name for each in product.combinations],
        "window_seconds": WINDOW_SECONDS,
    }


def in_this_process(path: str, overrides: list[str]) -> "ExperimentConfig":
    """An experiment that is trained without Ray."""
    from paceline.config.loading import load_config

    return load_config(path, overrides).with_overrides({"scaling.num_workers": 0, "sweep": None})


def samples_of(config: "ExperimentConfig", facts: "Facts") -> int:
    """Samples of a training to its end."""
    from paceline.config.derived import derive
    from paceline.data.base import Sizes

    if config.trainer.epochs is not None:
        return config.trainer.epochs * facts.train_samples
    derived = derive(config, Sizes(facts.train_samples, facts.validation_samples))
    return int((derived.total_steps or 0) * derived.batch.global_batch_size)


def surroundings() -> str:
    """Where, with what and when this was measured."""
    from importlib.metadata import version

    from measuring import cpu_name

    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{date}, {cpu_name()}, {cores} cores, load average {load:.2f}, torch {version('torch')}"


def say(line: str) -> None:
    """How it goes, beside the result."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; `config` and `overrides` are taken apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="+", metavar="CONFIG KEY=VALUE", help="see above")
    parser.add_argument("--recommended", metavar="FILE", help="the tune-up's recommended.yaml; without it, no final")
    parser.add_argument("--tuneup-seconds", type=float, metavar="S", help="how long the tune-up took")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="write the scan there, and go on with it")
    parser.add_argument("--minutes", type=float, help="stop the scan after so long; needs --resume")
    parser.add_argument("--so-far", action="store_true", help="scan no more, and conclude from what FILE has")
    parser.add_argument("--finalists", type=int, default=8, help="of the scan, at once (%(default)s)")
    parser.add_argument("--pairs", type=int, default=8, help="of windows in a duel of the final (%(default)s)")
    parser.add_argument("--duels", type=int, default=3, help="that the best one fights anew (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="that two configs are first compared over (%(default)s)")
    parser.add_argument("--checked", type=int, default=12, help="trained to see how long it takes (%(default)s)")
    parser.add_argument("--savers", type=int, default=0, metavar="N", help="drawn of those that save memory (none)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_intermixed_args(arguments)
    files = [each for each in args.given if "=" not in each]
    if len(files) != 1:
        parser.error(f"one CONFIG is needed: {' '.join(args.given)}")
    args.config, args.overrides = files[0], [each for each in args.given if "=" in each]
    if args.minutes is not None and args.resume is None:
        parser.error("--minutes needs --resume: what has been scanned would be lost")
    if args.so_far and (args.resume is None or not args.resume.exists()):
        parser.error("--so-far needs the FILE of a scan: --resume")
    if min(args.finalists, args.pairs, args.duels) < 1 or args.seeds < 2 or min(args.checked, args.savers) < 0:
        parser.error("--finalists, --pairs, --duels: at least 1; --seeds: at least 2; --checked, --savers: at least 0")
    return args


def run(args: argparse.Namespace, folder: Path) -> int:
    """Search, print, and return the exit code.

    Args:
        folder: where the scan is written without --resume.

    Raises:
        PacelineError: a config is wrong, or cannot be trained here.
        OtherSearch: --resume names the file of another search.
    """
    file = args.resume or folder / "scan.jsonl"
    # a cache of its own, so that compiling costs what it costs whoever searches for the first time
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{file.absolute()}.compiled"
    search = Search(args, file)
    if not args.so_far and not search.scan():
        say(f"{search.progress()}; start it again to go on")
        return TO_BE_CONTINUED
    from exhaustive_conclusion import conclude

    lines, values = conclude(search)
    print(json.dumps({**values, "surroundings": surroundings()}, indent=2) if args.json else "\n".join(lines))
    if not args.json:
        print(f"\n{surroundings()}")
    return 0


def main() -> None:
    """Search, and print what was found."""
    args = parse_arguments(sys.argv[1:])
    from exhaustive_journal import OtherSearch

    from paceline.errors import FAILED, PacelineError
    from paceline.tracking.redact import redact

    with tempfile.TemporaryDirectory() as folder:
        try:
            code = run(args, Path(folder))
        except (PacelineError, OtherSearch) as error:
            print(f"error: {redact(str(error))}", file=sys.stderr)
            code = getattr(error, "exit_code", FAILED)
    sys.exit(code)


if __name__ == "__main__":
    main()
