"""`paceline schema`: print the JSON Schema of config files."""

import argparse
import json
from typing import Any

from paceline.errors import OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "Print the JSON Schema of config files, for editors."
    commands.add_parser("schema", help="print the config's JSON Schema", description=text).set_defaults(command=_schema)


def _schema(options: argparse.Namespace) -> int:
    from paceline.config.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK
