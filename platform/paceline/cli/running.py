"""The commands that train: `train` and `sweep`."""

import argparse
import json
import math
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

from paceline.errors import INTERRUPTED, OK, TRIALS_FAILED

MOST_SECONDS = 1_000_000
"""The longest time-out."""


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    _add_train(commands)
    _add_sweep(commands)


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="run one experiment", description="Run one experiment.")
    add_config(train)
    train.add_argument("--dry-run", action="store_true", help="check the config, print what follows from it, and stop")
    train.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="auto: go on with the newest unfinished run of this name (default); never: start a new one",
    )
    which = train.add_mutually_exclusive_group()
    which.add_argument("--fork", action="store_true", help="branch off an unfinished run whose config differs")
    which.add_argument(
        "--extend",
        action="store_true",
        help="train the newest finished run of this name further, such as with trainer.epochs=10",
    )
    add_init_from(train)
    train.set_defaults(command=_train, refuse=train.error)


def _add_sweep(commands: Any) -> None:
    text = (
        "Run the trials of the config's sweep section. An unfinished sweep of the same name and config is gone on with."
    )
    sweep = commands.add_parser("sweep", help="run many trials of one experiment", description=text)
    add_config(sweep)
    sweep.add_argument(
        "--dry-run", action="store_true", help="check all points, print them and what they cost, and stop"
    )
    which = sweep.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="start no new sweep: only go on with an unfinished one")
    which.add_argument("--new", action="store_true", help="start a new sweep, even if there is an unfinished one")
    add_init_from(sweep)
    sweep.set_defaults(command=_sweep, refuse=sweep.error)


def add_config(command: argparse.ArgumentParser) -> None:
    """Add the config, its overrides, and where to run it."""
    command.add_argument("config", metavar="CONFIG", type=file_name, help="YAML file of the experiment")
    command.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="change a field, such as trainer.epochs=2 (value as in YAML)",
    )
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    command.add_argument("--address", metavar="A", help="address of a Ray cluster; default: a private local Ray")
    add_wait(command)


def add_wait(command: argparse.ArgumentParser) -> None:
    """Add the option that waits for room on a cluster."""
    command.add_argument(
        "--wait",
        metavar="SECONDS",
        type=_seconds,
        default=0.0,
        help="how long to wait for nodes and free resources of a cluster; default: nodes of an autoscaler alone",
    )


def add_init_from(command: argparse.ArgumentParser) -> None:
    """Add the option that names the first weights."""
    command.add_argument(
        "--init-from",
        metavar="RUN|FILE",
        type=_weights,
        help="start from the weights of a run (NAME, NAME/ID) or of a file; the same as model.weights",
    )


def overrides_of(options: argparse.Namespace) -> list[str]:
    """The overrides of a command, with that of `--init-from`."""
    if options.init_from is None:
        return list(options.overrides)
    return [*options.overrides, f"model.weights={json.dumps(options.init_from, ensure_ascii=False)}"]


def _weights(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: name a run or a file")
    return text


def add_timeout(command: argparse.ArgumentParser) -> None:
    """Add the option that gives up what hangs in the user's code."""
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_timeout,
        default=120.0,
        help="how long building the model or loading the data may take (default: 120)",
    )


def file_name(text: str) -> str:
    """The name of a config file, for argparse."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give the path of a YAML file")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 600")
    return seconds


def _timeout(text: str) -> float:
    seconds = _seconds(text)
    if not 1 <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and {MOST_SECONDS:,} seconds")
    return seconds


def _train(options: argparse.Namespace) -> int:
    if options.extend and options.resume == "never":
        options.refuse("argument --extend: not allowed with argument --resume never")
    if options.extend and options.init_from is not None:
        options.refuse("argument --init-from: not allowed with argument --extend")
    from paceline.config import load_config
    from paceline.config.loading import placing

    config = load_config(options.config, overrides_of(options))
    with placing(options.config, overrides_of(options)):
        return _train_with(config, options)


def _train_with(config: Any, options: argparse.Namespace) -> int:
    if options.dry_run:
        return _dry_run(config, options.json)
    from paceline.cluster.experiment import train
    from paceline.display import open_display

    # the user's code may print, and on stdout only the result belongs
    with open_display(f"{config.name}") as display, redirect_stdout(sys.stderr):
        result = train(
            config,
            resume=options.resume,
            fork=options.fork,
            extend=options.extend,
            address=options.address,
            wait_seconds=options.wait,
            listener=display.listener,
        )
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        display.print_result(result.rows())
    return INTERRUPTED if result.status == "interrupted" else OK


def _sweep(options: argparse.Namespace) -> int:
    from paceline.config import load_config
    from paceline.config.loading import placing

    config = load_config(options.config, overrides_of(options))
    with placing(options.config, overrides_of(options)):
        return _sweep_of(config, options)


def _sweep_of(config: Any, options: argparse.Namespace) -> int:
    if options.dry_run:
        from paceline.sweeps.planning.dry_run import dry_run
        from paceline.tracking.redact import learn, secrets_of

        learn(secrets_of(config))
        return dry_run(config, options.json, options.address, options.new)
    from paceline.sweeps.display import open_sweep_display
    from paceline.sweeps.section import section_of, trial_count
    from paceline.sweeps.sweep import sweep

    section = section_of(config)
    with open_sweep_display(section.objectives, config.name, trial_count(section)) as display:
        result = sweep(
            config,
            resume=options.resume,
            new=options.new,
            address=options.address,
            wait_seconds=options.wait,
            listener=display.listener,
        )
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        display.print_result(result.rows())
    if result.status == "interrupted":
        return INTERRUPTED
    return TRIALS_FAILED if result.failed else OK


def _dry_run(config: Any, as_json: bool) -> int:
    from paceline.cluster.initial_weights import pin_weights
    from paceline.config.derived import derive
    from paceline.config.loading import dump_yaml
    from paceline.tracking.redact import learn, redact, redact_tree, secrets_of, shareable

    config = pin_weights(config)
    derived = derive(config, config.data.sizes())
    learn(secrets_of(config))
    shown = shareable(config)
    if as_json:
        print(json.dumps({"config": redact_tree(shown.model_dump(mode="json")), "derived": asdict(derived)}))
        return OK
    print(redact(dump_yaml(shown)))
    for label, text in derived.lines():
        print(f"# {label}: {text}")
    return OK
