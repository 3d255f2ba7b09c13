"""`paceline scale`: find out which batch size, which learning rate and how many workers."""

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any

from paceline.cli.answer import answering
from paceline.cli.options import (
    add_cluster,
    add_config,
    add_init_from,
    add_intent,
    add_json,
    check_addresses,
    load,
    overrides_of,
)
from paceline.errors import OK, ConfigError


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Measure how far larger batches pay on this model and this hardware: the gradient noise scale, the critical "
        "batch size, the learning-rate rule that holds, and the time to a target for each batch size and number of "
        "workers. The recommendation is trained to the target with several seeds. An unfinished study of the same name "
        "and config is continued."
    )
    command = commands.add_parser("scale", help="find out which batch size and learning rate", description=text)
    add_config(command, example="scale.seeds=5")
    command.add_argument(
        "--target",
        type=_target,
        metavar="METRIC=VALUE",
        help="what training is to reach, such as val/accuracy=0.96 (default: scale.target, else the val/loss that the "
        "config as it is has after 80 %% of its training)",
    )
    command.add_argument(
        "--budget-seconds", type=_budget, metavar="N", help="time for all of it (default: scale.budget_seconds)"
    )
    command.add_argument(
        "--no-verify",
        action="store_true",
        help="do not train the recommendation to the target: it is a prediction then (default: scale.verify)",
    )
    command.add_argument("--dry-run", action="store_true", help="print what would be trained, and stop")
    add_intent(command, "study")
    add_init_from(command)
    add_cluster(command)
    add_json(command)
    command.set_defaults(command=_scale)


def _scale(options: argparse.Namespace) -> int:
    from paceline.config.loading import placing

    given = _given(options)
    options.overrides = [*options.overrides, *given]
    with _placing_options(given):
        config = load(options)
        with placing(options.config, overrides_of(options)):
            return _dry_run(config, options) if options.dry_run else _scale_with(config, options)


@contextmanager
def _placing_options(given: Mapping[str, str]) -> Iterator[None]:
    """Place problems at the option that was given, not at the override that it stands for.

    Args:
        given: overrides, and the option of each.
    """
    from paceline.config.overrides import place_of

    places = {place_of(override): option for override, option in given.items()}
    try:
        yield
    except ConfigError as error:
        problems = [replace(each, place=places.get(each.place, each.place)) for each in error.problems]
        raise ConfigError(problems) from error


def _scale_with(config: Any, options: argparse.Namespace) -> int:
    from paceline.batch_scaling.scale import scale
    from paceline.display import open_display, print_rows, print_table
    from paceline.redaction import redact

    def print_result(result: Any) -> None:
        heading, rows = result.table()
        print_table(heading, [[redact(cell) for cell in row] for row in rows])
        print()
        print_rows([(label, redact(text)) for label, text in result.rows()])

    with ExitStack() as shown:
        display = shown.enter_context(open_display(config.name, options.quiet, options.verbose))
        scale(
            config,
            resume=options.resume,
            new=options.new,
            address=options.address,
            wait_seconds=options.wait_for_resources,
            listener=display.listener,
            on_result=answering(shown, options.json, print_result),
        )
    return OK


def _dry_run(config: Any, options: argparse.Namespace) -> int:
    from paceline.batch_scaling.preview import preview
    from paceline.config.shareable import secrets_of
    from paceline.display import print_rows, print_table
    from paceline.redaction import learn

    learn(secrets_of(config))
    check_addresses(config)
    planned = preview(config)
    if options.json:
        print(json.dumps(planned.to_json()))
        return OK
    for heading, rows in planned.tables():
        print_table(heading, rows)
        print()
    print_rows(planned.rows())
    return OK


def _given(options: argparse.Namespace) -> dict[str, str]:
    """Return the overrides that options stand for, and the option of each."""
    given = {
        "--target": ("scale.target", options.target),
        "--budget-seconds": ("scale.budget_seconds", options.budget_seconds),
        "--no-verify": ("scale.verify", False if options.no_verify else None),
    }
    return {f"{key}={json.dumps(value)}": option for option, (key, value) in given.items() if value is not None}


def _target(text: str) -> dict[str, float]:
    name, _, value = text.rpartition("=")
    try:
        if not name or not isfinite(number := float(value)):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not METRIC=VALUE, such as val/accuracy=0.96") from None
    return {name: number}


def _budget(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 10 <= seconds <= 1e7:
        raise argparse.ArgumentTypeError(f"{text} is not within 10 to 10^7 seconds")
    return seconds
