"""`paceline compare`: compare runs."""

import argparse
import json
from typing import Any

from paceline.cli.options import RUN_HELP, STORAGE_HELP, add_json, output_file
from paceline.errors import OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Show what differs in the configs and the code of runs, their metrics with mean and deviation over seeds, and "
        "their speeds where these were measured under the same conditions. Runs of one config and one code are one "
        "column."
    )
    command = commands.add_parser("compare", help="compare the configs, metrics and speeds of runs", description=text)
    command.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    command.add_argument(
        "--plot", metavar="FILE", type=output_file, help="draw the metric's curves: .png, .svg or .pdf"
    )
    text = "metric that --plot draws; default: val/loss, or one that all runs have"
    command.add_argument("--metric", metavar="KEY", help=text)
    command.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    add_json(command)
    command.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    if options.metric is not None and options.plot is None:
        options.refuse("argument --metric: needs --plot, which draws it")
    from paceline.runs.comparing import compare

    found = compare(*options.runs, storage=options.storage)
    if options.plot is not None:
        found.save_plot(options.plot, options.metric)
    if options.json:
        print(json.dumps(found.to_json()))
        return OK
    from paceline.display import print_table
    from paceline.redaction import redact

    for heading, rows in found.tables():
        print_table(heading, [[redact(cell) for cell in row] for row in rows])
        print()
    if not found.is_speed_comparable:
        print("speeds cannot be compared:", *found.speed_differences, sep="\n  ")
    return OK
