"""`paceline export`: write the weights of a run into a folder of their own."""

import argparse
import json
import sys
from typing import Any

from paceline.cli.options import RUN_HELP, STORAGE_HELP, add_json, stage_printer, store_of
from paceline.errors import OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "Write the best kept checkpoint of a run, or of a sweep's best trial, into a folder of its own."
    export = commands.add_parser("export", help="write a run's best kept checkpoint into a folder", description=text)
    export.add_argument("run", metavar="RUN", help=RUN_HELP)
    export.add_argument(
        "--format",
        choices=("safetensors", "pt2"),
        default="safetensors",
        help="safetensors: the weights (default); pt2: the traced model, which runs without its code",
    )
    export.add_argument("--output", metavar="FOLDER", help="folder to write; default: one below ./exports")
    text = "metric of the best checkpoint; default: the sweep's metric, else checkpoint.monitor, else val/loss"
    export.add_argument("--metric", metavar="KEY", help=text)
    export.add_argument("--mode", choices=("min", "max"), help="direction of that metric; default: by its name")
    export.add_argument("--register", metavar="NAME", help="make it a version of this model in MLflow's registry")
    export.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    export.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that the run was recorded in")
    text = "with pt2, call the code that a config from elsewhere names"
    export.add_argument("--trust", action="store_true", help=text)
    add_json(export)
    export.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> int:
    from paceline.display import print_rows
    from paceline.runs.export import export

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
        tell=stage_printer(options.quiet),
    )
    for warning in exported.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if options.json:
        print(json.dumps(exported.to_json()))
    else:
        print_rows(exported.rows())
    return OK
