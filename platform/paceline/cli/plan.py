"""`paceline plan`: predict the memory of a training step."""

import argparse
import json
import re
import sys
from typing import Any

from paceline.cli.options import add_config, add_json, add_timeout
from paceline.errors import OK

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "Predict the memory of a training step, and which settings fit, without training and without a GPU."
    plan = commands.add_parser("plan", help="predict the memory of training", description=text)
    add_config(plan, "trainer.precision=bf16-mixed")
    plan.add_argument(
        "--memory",
        metavar="SIZE",
        type=size_of,
        help="memory of a worker's device, such as 16GiB; default: that of the GPU here, or a worker's part of this "
        "machine's",
    )
    plan.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="device of the training; auto (default): a GPU where the config asks for one or this machine has enough",
    )
    add_timeout(plan)
    add_json(plan)
    plan.set_defaults(command=_plan)


def size_of(text: str) -> int:
    """Return a number of bytes, given with or without a unit, for argparse."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or float(found[1]) * unit < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 16GiB, 24GB or 512MiB")
    return round(float(found[1]) * unit)


def _plan(options: argparse.Namespace) -> int:
    from paceline.config import load_config
    from paceline.config.loading import placing

    config = load_config(options.config, options.overrides)
    with placing(options.config, options.overrides):
        from paceline.memory.plan import plan

        found = plan(config, memory_bytes=options.memory, device=options.device, timeout_seconds=options.timeout)
    if options.json:
        print(json.dumps(found.to_json()))
        return OK
    from paceline.display import print_rows, print_table
    from paceline.redaction import redact

    for text in found.warnings:
        print(f"warning: {redact(text)}", file=sys.stderr)
    print_rows(found.rows())
    print()
    print_table(*found.table())
    return OK
