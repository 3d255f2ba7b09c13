"""The commands for what runs have left behind: `ui`, `sync`, `report` and `export`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paceline.errors import OK
from paceline.places import place_of

LAST_PORT = 65_535
RUN_HELP = "its folder or address, or NAME, NAME/ID or NAME/ID/TRIAL, or MLflow's run id"
STORAGE_HELP = "what holds the runs: a folder, or an address; default: ./runs"


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    _add_ui(commands)
    _add_sync(commands)
    _add_report(commands)
    _add_export(commands)


def _add_ui(commands: Any) -> None:
    ui = commands.add_parser("ui", help="review runs in MLflow", description="Serve MLflow's UI on this folder's runs.")
    ui.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that runs in this folder use")
    ui.add_argument(
        "--port",
        type=_port,
        default=5000,
        help="port on 127.0.0.1 (default 5000, or the next free one; 0: any free one)",
    )
    ui.set_defaults(command=_ui)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give one from 1 to {LAST_PORT}, or 0 for any free one")
    return int(text)


def _add_sync(commands: Any) -> None:
    text = (
        "Send to MLflow what runs could not send while they went on: all that is recorded in DIR or below. Runs that "
        "are going on are left alone. Exit code 1: something is left; 3: MLflow does not answer."
    )
    sync = commands.add_parser("sync", help="send to MLflow what is left of runs", description=text)
    sync.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="runs",
        help="runs, or one run or sweep, or an address (default runs)",
    )
    sync.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that each run was started with")
    sync.add_argument("--json", action="store_true", help="print what became of each run as one JSON object")
    sync.set_defaults(command=_sync)


def _add_report(commands: Any) -> None:
    text = "Write what a run, a sweep or a tune-up came to as one HTML file, which opens without a network."
    report = commands.add_parser("report", help="write a run's report as one HTML file", description=text)
    report.add_argument("run", metavar="RUN", help=RUN_HELP)
    report.add_argument(
        "--output", metavar="FILE", type=Path, help="the file; default: report.html in the run's folder"
    )
    report.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    report.add_argument("--json", action="store_true", help="print the place as JSON")
    report.set_defaults(command=_report)


def _add_export(commands: Any) -> None:
    text = "Write the best kept checkpoint of a run, or of a sweep's best trial, into a folder of its own."
    export = commands.add_parser("export", help="write a run's best kept checkpoint into a folder", description=text)
    export.add_argument("run", metavar="RUN", help=RUN_HELP)
    export.add_argument(
        "--format",
        choices=("safetensors", "pt2"),
        default="safetensors",
        help="safetensors: the weights (default); pt2: the traced model, which does without its code",
    )
    export.add_argument("--output", metavar="FOLDER", help="where to; default: a folder below ./exports")
    export.add_argument("--metric", metavar="KEY", help="best in what; default: val/loss, or the sweep's objective")
    export.add_argument("--mode", choices=("min", "max"), help="which way it is better; default: as its name says")
    export.add_argument("--register", metavar="NAME", help="make it a version of this model in MLflow's registry")
    export.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    export.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that the run was recorded in")
    export.add_argument(
        "--trust", action="store_true", help="with pt2, call the code that a config from elsewhere names"
    )
    export.add_argument("--json", action="store_true", help="print what was written as JSON")
    export.set_defaults(command=_export)


def _sync(options: argparse.Namespace) -> int:
    from paceline.display import print_sync
    from paceline.storage.address import is_address

    uri = store_of(options.uri) if options.uri else None
    if is_address(options.folder):
        from paceline.review.stored_sync import sync_address

        report = sync_address(options.folder, uri, _tell)
    else:
        from paceline.review.sync import sync_folder

        report = sync_folder(place_of(options.folder), uri, _tell)
    return print_sync(report, options.json)


def _ui(options: argparse.Namespace) -> int:
    from paceline.review.elsewhere import recorded_elsewhere
    from paceline.tracking.server import ui

    uri = store_of(options.uri)
    for line in recorded_elsewhere(Path("runs").absolute(), uri):
        print(line, flush=True)
    return ui(uri, options.port)


def _report(options: argparse.Namespace) -> int:
    from paceline.review.finding import find_run
    from paceline.review.report.report import write_report

    found = find_run(options.run, options.storage, tuneups=True)
    place = write_report(found, options.output)
    told = {"report": str(place), "kind": found.kind, "folder": str(found.folder), "size_bytes": place.stat().st_size}
    print(json.dumps(told) if options.json else place)
    return OK


def _export(options: argparse.Namespace) -> int:
    from paceline.review.export import export

    exported = export(
        options.run,
        options.format,
        options.output,
        metric=options.metric,
        mode=options.mode,
        register=options.register,
        storage=options.storage,
        uri=store_of(options.uri) if options.uri else None,
        trust=options.trust,
        tell=_tell,
    )
    for warning in exported.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if options.json:
        print(json.dumps(exported.to_json()))
    else:
        for label, text in exported.rows():
            print(f"{label:<12} {text}")
    return OK


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def store_of(uri: str | None) -> str:
    """The store that runs of this folder use, unless another is named."""
    from paceline.config.sections import TrackingConfig
    from paceline.tracking.store import tracking_uri

    return tracking_uri(TrackingConfig(uri=uri), place_of("."))
