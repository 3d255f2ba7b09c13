"""`paceline ui`: review runs in MLflow."""

import argparse
from pathlib import Path
from typing import Any

from paceline.cli.options import store_of
from paceline.places import default_storage

LAST_PORT = 65_535


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    ui = commands.add_parser("ui", help="review runs in MLflow", description="Serve MLflow's UI on this folder's runs.")
    ui.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that runs in this folder use")
    text = "port on 127.0.0.1 (default 5000, or the next free one; 0: any free one)"
    ui.add_argument("--port", type=_port, default=5000, help=text)
    ui.set_defaults(command=_ui)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give 1 to {LAST_PORT}, or 0 for any free one")
    return int(text)


def _ui(options: argparse.Namespace) -> int:
    from paceline.runs.elsewhere import recorded_elsewhere
    from paceline.storage.address import is_address
    from paceline.tracking.mlflow_server import ui

    uri = store_of(options.uri)
    storage = default_storage() or "runs"
    for line in recorded_elsewhere(Path(storage).absolute(), uri) if not is_address(storage) else ():
        print(line, flush=True)
    return ui(uri, options.port)
