"""`paceline report`: write the report of a run, a sweep, a tune-up or a scale study as one HTML file."""

import argparse
import json
import sys
from typing import Any

from paceline.cli.options import RUN_HELP, STORAGE_HELP, add_json, output_file
from paceline.errors import OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Write the results of a run, a sweep, a tune-up or a scale study as one HTML file, which opens without a "
        "network."
    )
    report = commands.add_parser("report", help="write a run's report as one HTML file", description=text)
    report.add_argument("run", metavar="RUN", help=RUN_HELP)
    text = "file to write; default: report.html in the run's folder"
    report.add_argument("--output", metavar="FILE", type=output_file, help=text)
    report.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    add_json(report)
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    from paceline.errors import coded
    from paceline.runs.finding import find_run
    from paceline.runs.report.report import write_report

    found = find_run(options.run, options.storage, studies=True)
    if found.note:
        print(f"warning: {coded(found.note, 'runs-and-sweeps')}", file=sys.stderr)
    place = write_report(found, options.output)
    told = {"report": str(place), "kind": found.kind, "folder": str(found.folder), "size_bytes": place.stat().st_size}
    print(json.dumps(told) if options.json else place)
    return OK
