"""The commands that look at the environment and at config files: `doctor` and `schema`."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from typing import Any

from paceline.errors import OK


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    _add_doctor(commands)
    _add_schema(commands)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check this environment", description="Check this environment.")
    doctor.add_argument(
        "--address", metavar="A", help="also look at every node of the Ray cluster at this address, and between them"
    )
    doctor.add_argument(
        "--storage", metavar="PATH", help="what holds the runs: a folder that all nodes must share, or an address"
    )
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.set_defaults(command=_doctor)


def _add_schema(commands: Any) -> None:
    schema = commands.add_parser(
        "schema", help="print the config's JSON Schema", description="Print the JSON Schema of config files."
    )
    schema.set_defaults(command=_schema)


def _doctor(options: argparse.Namespace) -> int:
    from paceline.cli.reviewing import store_of
    from paceline.display import print_checks
    from paceline.doctor import diagnose

    checks = diagnose(address=options.address, uri=store_of(None), storage=options.storage)
    if options.address not in (None, "local") and any(check.name == "ray cluster" and check.ok for check in checks):
        checks += _nodes(options.address, options.storage or "")
    return print_checks(checks, options.json)


def _nodes(address: str, storage: str) -> list[Any]:
    from paceline.cluster.examination import examine

    with redirect_stdout(sys.stderr):  # where only the checks belong
        return list(examine(address, storage))


def _schema(options: argparse.Namespace) -> int:
    from paceline.config.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK
