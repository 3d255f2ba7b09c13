"""`paceline list`: list the runs of a storage."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from paceline.cli.options import STORAGE_HELP, add_json
from paceline.errors import OK
from paceline.places import default_storage
from paceline.sweeps.results.labels import shortened

if TYPE_CHECKING:
    from paceline.runs.listing import ListedRun

SHOWN_METRICS = 3
LONGEST = 120
"""Characters of a summary."""


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "List runs, sweeps, tune-ups and scale studies, the newest of each name last."
    command = commands.add_parser("list", help="list runs, sweeps, tune-ups and scale studies", description=text)
    command.add_argument("name", metavar="NAME", nargs="?", help="only those of this name")
    command.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    add_json(command)
    command.set_defaults(command=_list)


def _list(options: argparse.Namespace) -> int:
    from paceline.redaction import redact
    from paceline.runs.listing import list_runs

    found = list_runs(options.name, options.storage)
    if options.json:
        print(json.dumps({"runs": [each.to_json() for each in found]}))
        return OK
    if not found:
        place = options.storage or default_storage() or "./runs"
        named = f" named {options.name!r}" if options.name else ""
        print(redact(f"no runs{named} in {place}: start one with paceline train, or name another place with --storage"))
        return OK
    from paceline.display import print_table

    rows = [
        [redact(f"{each.name}/{each.id}"), each.kind, each.status, each.started, redact(_result_text(each))]
        for each in found
    ]
    print_table(["run", "kind", "status", "started (UTC)", "result"], rows)
    return OK


def _result_text(run: "ListedRun") -> str:
    """The summary in a line, of a training the first metrics, those of the validation first."""
    if run.summary:
        return shortened(run.summary, LONGEST)
    metrics = run.metrics
    keys = sorted(metrics, key=lambda key: (not key.startswith("val/"), key))[:SHOWN_METRICS]
    return "  ".join(f"{key} {metrics[key]:.4g}" for key in keys)
