"""`paceline tuneup`: find out which techniques help a model on this hardware."""

import argparse
import json
from contextlib import ExitStack
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
from paceline.errors import OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Measure each technique on this model and this hardware: a verdict for each, and a recommended config. The "
        "config's section tuneup sets the time budget and the margin within which quality counts as equal. An "
        "unfinished tune-up of the same name and config is continued."
    )
    command = commands.add_parser("tuneup", help="find out which techniques help a model here", description=text)
    add_config(command)
    command.add_argument("--dry-run", action="store_true", help="print which techniques would be tried, and stop")
    add_intent(command, "tune-up")
    add_init_from(command)
    add_cluster(command)
    add_json(command)
    command.set_defaults(command=_tuneup)


def _tuneup(options: argparse.Namespace) -> int:
    from paceline.config.loading import placing

    config = load(options)
    with placing(options.config, overrides_of(options)):
        return _dry_run(config, options.json) if options.dry_run else _tuneup_with(config, options)


def _tuneup_with(config: Any, options: argparse.Namespace) -> int:
    from paceline.tuneups.display import open_tuneup_display
    from paceline.tuneups.tuneup import tuneup

    with ExitStack() as shown:
        display = shown.enter_context(open_tuneup_display(config, options.quiet, options.verbose))
        tuneup(
            config,
            resume=options.resume,
            new=options.new,
            address=options.address,
            wait_seconds=options.wait_for_resources,
            listener=display.listener,
            on_result=answering(shown, options.json, display.print_result),
        )
    return OK


def _dry_run(config: Any, as_json: bool) -> int:
    from paceline.config.shareable import secrets_of
    from paceline.display import print_table
    from paceline.redaction import learn
    from paceline.tuneups.preview import HEADING, plain_values, preview, rows_of

    learn(secrets_of(config))
    check_addresses(config)
    techniques = preview(config)
    if as_json:
        print(json.dumps(plain_values(techniques)))
    else:
        print_table(HEADING, rows_of(techniques))
    return OK
