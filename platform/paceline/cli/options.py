"""Options that several commands share, and their values."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from paceline.places import default_address, place_of

MAX_SECONDS = 1_000_000
"""The longest time-out."""
EXTEND_RUN = "train the newest finished run of this name further, such as with trainer.epochs=10"
EXTEND_SWEEP = "add trials to the newest finished sweep of this name, such as with sweep.num_samples=40"
RUN_HELP = "its folder or address, or NAME, NAME/ID or NAME/ID/TRIAL, or MLflow's run id"
STORAGE_HELP = "folder or address that holds the runs; default: PACELINE_STORAGE, else ./runs"


def add_config(command: argparse.ArgumentParser, example: str = "trainer.epochs=2", optional: bool = False) -> None:
    """Add the config file and its overrides.

    Args:
        example: of an override, for the help.
        optional: the file may be left out.
    """
    text = "YAML file of the experiment"
    command.add_argument("config", metavar="CONFIG", type=file_name, nargs="?" if optional else None, help=text)
    add_overrides(command, f"change a field, such as {example} (value as in YAML)")


def add_overrides(command: argparse.ArgumentParser, text: str) -> None:
    """Add `KEY=VALUE` arguments; `paceline.cli.parse` also finds them between the flags."""
    command.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=text)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_verbosity(command: argparse.ArgumentParser) -> None:
    """Add `-v` and `-q`."""
    which = command.add_mutually_exclusive_group()
    which.add_argument("-v", "--verbose", action="store_true", help="show more, such as every metric as it is logged")
    which.add_argument("-q", "--quiet", action="store_true", help="show warnings and the result only")


def stage_printer(is_quiet: bool) -> Callable[[str], None]:
    """Return a function that prints the stages of a command to stderr; with `-q` it prints nothing."""
    return (lambda text: None) if is_quiet else partial(print, file=sys.stderr, flush=True)


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the Ray cluster and the time to wait for it."""
    text = "address of a Ray cluster; default: PACELINE_ADDRESS, else a private local Ray"
    command.add_argument("--address", metavar="A", default=default_address(), help=text)
    add_wait(command)


def add_wait(command: argparse.ArgumentParser) -> None:
    """Add the time to wait for room on a cluster."""
    command.add_argument(
        "--wait-for-resources",
        metavar="SECONDS",
        type=_seconds,
        default=0.0,
        help="how long to wait for nodes to join and for resources that others use; default: only for nodes that an "
        "autoscaler adds",
    )


def add_intent(command: argparse.ArgumentParser, word: str, fork: bool = False, extend: str = "") -> None:
    """Add the choice between continuing an earlier run of the name and starting a new one.

    Args:
        word: what the command runs: a run, a sweep or a tune-up.
        fork: add `--fork`, which runs alone have.
        extend: what `--extend` does; empty where there is no such option.
    """
    which = command.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help=f"only continue an unfinished {word}; start no new one")
    which.add_argument("--new", action="store_true", help=f"start a new {word}, even if one is unfinished")
    if fork:
        text = "start a new run from the newest checkpoint of an unfinished one whose config differs"
        which.add_argument("--fork", action="store_true", help=text)
    if extend:
        which.add_argument("--extend", action="store_true", help=extend)


def add_init_from(command: argparse.ArgumentParser) -> None:
    """Add the option that names the first weights."""
    command.add_argument(
        "--init-from",
        metavar="RUN|FILE",
        type=_weights,
        help="start from the weights of a run (NAME, NAME/ID) or of a file; the same as model.weights",
    )


def overrides_of(options: argparse.Namespace) -> list[str]:
    """Return the overrides of a command, with that of `--init-from`."""
    if options.init_from is None:
        return list(options.overrides)
    return [*options.overrides, f"model.weights={json.dumps(options.init_from, ensure_ascii=False)}"]


def refuse_init_from_with_extend(options: argparse.Namespace) -> None:
    """Refuse weights for a run that already has some.

    Raises:
        SystemExit: both options are set.
    """
    if options.extend and options.init_from is not None:
        options.refuse("argument --init-from: not allowed with argument --extend")


def add_timeout(command: argparse.ArgumentParser) -> None:
    """Add the time limit for user code that may hang."""
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_timeout,
        default=120.0,
        help="how long building the model or loading the data may take (default: 120)",
    )


def file_name(text: str) -> str:
    """Return the name of a config file, for argparse."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give the path of a YAML file")
    return text


def store_of(uri: str | None) -> str:
    """Return the MLflow store that runs of this folder use, unless another is named."""
    from paceline.config.sections import TrackingConfig
    from paceline.tracking.tracking_uri import tracking_uri

    return tracking_uri(TrackingConfig(uri=uri), place_of("."))


def output_file(text: str) -> Path:
    """Return the path of a file to write, for argparse."""
    return Path(file_name(text))


def load(options: argparse.Namespace) -> Any:
    """Load the config of a command that takes `--init-from`."""
    from paceline.config import load_config

    return load_config(options.config, overrides_of(options))


def check_addresses(config: Any) -> None:
    """Refuse addresses in the config that no run can use, so that a dry run finds them as well.

    Raises:
        ConfigError: `storage.path` or `tracking.uri` has an unknown scheme, or lacks its bucket, host or file.
    """
    from paceline.storage.address import is_address, parse
    from paceline.tracking.tracking_uri import tracking_uri

    if is_address(config.storage.path):
        parse(config.storage.path)
    if config.tracking.uri:
        tracking_uri(config.tracking, place_of("."))


def _weights(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: name a run or a file")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 600")
    return seconds


def _timeout(text: str) -> float:
    seconds = _seconds(text)
    if not 1 <= seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and {MAX_SECONDS:,} seconds")
    return seconds
