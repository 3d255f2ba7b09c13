"""`paceline doctor`: check this environment, or every node of a cluster."""

import argparse
import sys
from contextlib import redirect_stdout
from typing import Any

from paceline.cli.options import add_json, store_of
from paceline.places import default_address, default_storage


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "Check this environment, and print a hint for everything that it lacks."
    doctor = commands.add_parser("doctor", help="check this environment", description=text)
    text = "also check every node of the Ray cluster at this address, and the network between them"
    doctor.add_argument("--address", metavar="A", default=default_address(), help=text)
    text = "place that holds the runs: a folder that all nodes must share, or an address"
    doctor.add_argument("--storage", metavar="PATH", help=text)
    add_json(doctor)
    doctor.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from paceline.display import print_checks
    from paceline.doctor import diagnose

    checks = diagnose(address=options.address, uri=store_of(None), storage=options.storage)
    if options.address not in (None, "local") and any(check.name == "ray cluster" and check.ok for check in checks):
        checks += _nodes(options.address, options.storage or default_storage() or "")
    return print_checks(checks, options.json)


def _nodes(address: str, storage: str) -> list[Any]:
    from paceline.cluster.cluster_doctor import examine

    with redirect_stdout(sys.stderr):  # only the checks belong on stdout
        return list(examine(address, storage))
