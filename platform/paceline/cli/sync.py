"""`paceline sync`: send to MLflow what runs could not send."""

import argparse
from typing import Any

from paceline.cli.options import add_json, stage_printer, store_of
from paceline.places import default_storage, place_of


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Send to MLflow everything that is recorded in DIR or below and not there yet. Runs that are still running are "
        "left alone. Exit code 1: something is left; 3: MLflow does not answer."
    )
    sync = commands.add_parser("sync", help="send to MLflow what runs could not send", description=text)
    text = "runs, or one run or sweep, or an address (default: PACELINE_STORAGE, else ./runs)"
    sync.add_argument("folder", metavar="DIR", nargs="?", default=default_storage() or "runs", help=text)
    sync.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that each run was started with")
    add_json(sync)
    sync.set_defaults(command=_sync)


def _sync(options: argparse.Namespace) -> int:
    from paceline.display import print_sync
    from paceline.storage.address import is_address

    uri = store_of(options.uri) if options.uri else None
    tell = stage_printer(options.quiet)
    if is_address(options.folder):
        from paceline.runs.stored_sync import sync_address

        report = sync_address(options.folder, uri, tell)
    else:
        from paceline.runs.sync import sync_folder

        report = sync_folder(place_of(options.folder), uri, tell)
    return print_sync(report, options.json)
