"""`paceline init`: write a first config file."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.cli.options import add_json, output_file
from paceline.errors import OK

UV_VARIABLE = "UV_RUN_RECURSION_DEPTH"
"""Set by `uv run` in what it starts."""
SHIPPED = {"model": "cnn", "data": "mnist5k"}


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Write a commented config file, and its JSON Schema for editors beside it. The config is checked as by a dry "
        "run, which reads user code without importing it; `paceline lint` imports it. An existing config is never "
        "overwritten."
    )
    init = commands.add_parser("init", help="write a first config file", description=text)
    text = "import path of a function or class that returns a torch.nn.Module, or a shipped name (default: cnn)"
    init.add_argument("--model", metavar="PKG:NAME", default=SHIPPED["model"], help=text)
    text = "import path of a function that returns the data sets, or a shipped name (default: mnist5k)"
    init.add_argument("--data", metavar="PKG:NAME", default=SHIPPED["data"], help=text)
    text = "import path of a Task, or a shipped name (default: that of the model's library, else classification)"
    init.add_argument("--task", metavar="PKG:NAME", help=text)
    for section in ("model", "data", "task"):
        text = f"argument of the {section}, such as width=64; may be repeated"
        init.add_argument(f"--{section}-arg", metavar="NAME=VALUE", action="append", default=[], help=text)
    text = "file to write (default: experiment.yaml)"
    init.add_argument("--output", metavar="FILE", type=output_file, default=Path("experiment.yaml"), help=text)
    add_json(init)
    init.set_defaults(command=_init)


def _init(options: argparse.Namespace) -> int:
    from paceline.config.first_file import SCHEMA_FILE, write_first_file

    named = {"model": options.model, "data": options.data, "task": options.task}
    chosen = {section: name for section, name in named.items() if name is not None}
    args = {"model": options.model_arg, "data": options.data_arg, "task": options.task_arg}
    if options.task is None and options.task_arg:
        options.refuse("argument --task-arg: needs --task, which it is for")
    file = write_first_file(options.output, chosen, args)
    if options.json:
        print(json.dumps({"config": str(file), "schema": str(file.parent / SCHEMA_FILE)}))
        return OK
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    print(f"wrote {shown}\ntrain it with: {_prefix()}paceline train {shown}")
    if (
        options.task is None
        and options.model != SHIPPED["model"]
        and "task: {name: classification}" in file.read_text()
    ):
        print("task: see the line task in the file; Hugging Face models need task: {name: model_loss}")
    return OK


def _prefix() -> str:
    """Return how this command was started: through `uv run`, or directly."""
    if UV_VARIABLE not in os.environ:
        return ""
    project = Path(sys.prefix).parent
    return "uv run " if Path.cwd().is_relative_to(project) else f"uv run --project {project} "
