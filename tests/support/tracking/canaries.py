"""Secrets in all places where a user may have them, commands that come across them, and where they are found."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

# With all that is written otherwise in addresses, JSON, HTML or Markdown; one begins as a path does.
ENVIRONMENT = '/env_7Qz<&+"9f1/env_3Kx'
KEY = 'key_7Qz<&+"9f1/key_3Kx'
ARGUMENT = 'arg_7Qz<&+"9f1/arg_3Kx'
ADDRESS = "address_7Qz/<&+9f1/address_3Kx"
TRACKING = 'tracking_7Qz<&+"9f1/tracking_3Kx'
CANARIES = (ENVIRONMENT, KEY, ARGUMENT, ADDRESS, TRACKING)
ARGUMENTS = {"source": f"s3://me:{ADDRESS}@host/x", ENVIRONMENT: 1}
CONFIG = f"""\
name: tiny
task: {{path: "own_net:Chatty"}}
model: {{path: "own_net:build", args: {json.dumps(ARGUMENTS)}}}
data: {{name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}}
trainer: {{epochs: 2, log_every_n_steps: 1}}
scaling: {{num_workers: 0, use_gpu: false}}
"""
OWN_NET = """
import os

import torch

from paceline import Task, TaskOutput

about = {}


class Net(torch.nn.Linear):
    def forward(self, batch):
        if os.environ.get("MISTAKE") or about["source"].endswith("/broken"):
            used = about["api_key"], about["argument"], about["source"], os.environ["STORE_PASSWORD"]
            raise ValueError("no login with " + ", ".join(used))
        return super().forward(batch)


def build(api_key, source, argument="nothing", **others):
    about.update(api_key=api_key, source=source, argument=argument)
    return Net(8, 4)


class Chatty(Task):
    def forward(self, batch):
        features, targets = batch[0], batch[1]
        loss = torch.nn.functional.cross_entropy(self.model(features), targets, reduction="sum")
        name = "seen by " + os.environ["STORE_PASSWORD"]
        return TaskOutput(loss, torch.tensor(float(len(targets))), {name: loss.detach()})
"""
OWN_SCRIPT = """
from argparse import ArgumentParser
from functools import partial

import own_net
from paceline import load_config, train

parser = ArgumentParser()
parser.add_argument("--api-key")
given, overrides = parser.parse_known_args()
train(load_config("tiny.yaml", overrides), model=partial(own_net.build, argument=given.api_key))
"""
COMMAND = "from paceline.cli import main\nmain()"
SCRIPT = "import runpy, sys\nsys.argv[0] = 'own_script.py'\nrunpy.run_path('own_script.py', run_name='__main__')"
NAKED = """
import paceline.redaction as room
room.redact.__code__ = (lambda text: text).__code__
room._is_secret = lambda key, value: False
"""
"""Switches the redaction off."""
OWN_FILES = ("run.json", "sweep.json", "best.yaml", "log.jsonl")
"""What a run or a sweep is gone on with, or trained again: these hold the config as it is, for their owner alone."""
USERS_FILES = ("tiny.yaml", "own_net.py", "own_net.cpython", "own_script.py")


@dataclass
class Workplace:
    """A user's folder, and commands in it."""

    folder: Path
    environment: Mapping[str, str]
    said: bytes = b""
    """All that commands have printed."""

    def run(self, *arguments: str, naked: bool = False, **environment: str) -> int:
        """Run a command of Paceline's; its exit status. The redaction may be switched off."""
        return self._run(COMMAND, arguments, naked, environment)

    def run_script(self, *arguments: str, naked: bool = False, **environment: str) -> int:
        """The same for the user's own script, which is given a secret of its own."""
        return self._run(SCRIPT, ("--api-key", ARGUMENT, *arguments), naked, environment)

    def _run(self, program: str, arguments: Iterable[str], naked: bool, environment: Mapping[str, str]) -> int:
        done = subprocess.run(
            [sys.executable, "-c", f"{NAKED if naked else ''}\n{program}", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            timeout=400,
        )
        self.said += done.stdout + done.stderr
        return done.returncode


def made_in(folder: Path) -> Workplace:
    """A workplace with the config and the code; nothing has run in it yet."""
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "own_net.py").write_text(OWN_NET)
    (folder / "own_script.py").write_text(OWN_SCRIPT)
    environment = {**os.environ, "STORE_PASSWORD": ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return Workplace(folder, environment)


class Found(NamedTuple):
    """A secret, and where it was."""

    canary: str
    place: str


def found_in(workplace: Workplace, *more: Path) -> list[Found]:
    """Where the secrets are; not in the user's own files, nor in those that Paceline goes on with."""
    files = [file for folder in (workplace.folder, *more) for file in sorted(folder.rglob("*")) if file.is_file()]
    read = [file for file in files if file.name not in OWN_FILES and not file.name.startswith(USERS_FILES)]
    assert {"journal.jsonl", "record.json"} <= {file.name for file in read}
    contents = {str(file): str(file).encode() + bytes_of(file) for file in read} | {"printed": workplace.said}
    return [Found(one, place) for place, content in contents.items() for one in canaries_in(content)]


def bytes_of(file: Path) -> bytes:
    """Return what a file holds; nothing for one that a database has removed meanwhile."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def canaries_in(content: bytes) -> list[str]:
    """The canaries of which the whole or a half is in it, however it is written."""
    return [one for one in CANARIES if any(form in content for form in _forms(one))]


def _forms(canary: str) -> set[bytes]:
    middle = len(canary) // 2  # what was cut off may be all that is left
    return {form.encode() for part in (canary[:middle], canary[middle:]) for form in _written(part)}


def _written(text: str) -> Iterator[str]:
    for page in (text, escape(text), escape(text, quote=False)):
        for marks in (r"([\\`*_{}\[\]#|~])", r"([\\`*_{}\[\]#|~<>&+-])", r"(?!)()"):
            form = re.sub(marks, r"\\\1", page)
            yield from (form, json.dumps(form)[1:-1], repr(form)[1:-1], quote(form, safe=""), quote(form))
