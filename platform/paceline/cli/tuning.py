"""The command that finds out what helps: `tuneup`."""

import argparse
import json
from typing import Any

from paceline.cli.running import add_config, add_init_from, overrides_of
from paceline.errors import OK


def add_commands(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Measure each technique on this model and this hardware: a verdict for each, and a recommended config. "
        "The config's section tuneup says how much time there is, and what counts as equal quality. "
        "An unfinished tune-up of the same name and config is gone on with."
    )
    command = commands.add_parser("tuneup", help="find out which techniques help a model here", description=text)
    add_config(command)
    command.add_argument("--dry-run", action="store_true", help="print what would be tried and what not, and stop")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="start no new tune-up: only go on with an unfinished one")
    which.add_argument("--new", action="store_true", help="start a new tune-up, even if there is an unfinished one")
    add_init_from(command)
    command.set_defaults(command=_tuneup, refuse=command.error)


def _tuneup(options: argparse.Namespace) -> int:
    from paceline.config import load_config
    from paceline.config.loading import placing

    config = load_config(options.config, overrides_of(options))
    if options.dry_run:
        with placing(options.config, overrides_of(options)):
            return _dry_run(config, options.json)
    from paceline.study.tuneup.display import open_tuneup_display
    from paceline.study.tuneup.tuneup import tuneup

    with placing(options.config, overrides_of(options)), open_tuneup_display(config) as display:
        result = tuneup(
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
        display.print_result(result)
    return OK


def _dry_run(config: Any, as_json: bool) -> int:
    from paceline.display import print_table
    from paceline.study.tuneup.preview import HEADING, plain_values, preview, rows_of
    from paceline.tracking.redact import learn, secrets_of

    learn(secrets_of(config))
    arms = preview(config)
    if as_json:
        print(json.dumps(plain_values(arms)))
    else:
        print_table(HEADING, rows_of(arms))
    return OK
