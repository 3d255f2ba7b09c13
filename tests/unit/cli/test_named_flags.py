"""Messages name only flags that exist."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from paceline.cli import build_parser
from paceline.engine.checkpoint_files import START_FROM_SCRATCH

GOLDEN = Path(__file__).parents[2] / "golden"


def parsers() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(commands.choices)


def flags_of(command: str) -> set[str]:
    """The flags of a command, and those with one of their values, such as `--format pt2`."""
    actions = parsers()[command]._actions
    values = {f"{flag} {value}" for each in actions for flag in each.option_strings for value in each.choices or ()}
    return {flag for each in actions for flag in each.option_strings} | values


def named_in_resume_errors() -> Iterator[str]:
    for file in GOLDEN.glob("*.txt"):
        for problem in re.findall(r".*\[resume\]\n    hint: .*", file.read_text()):
            yield from re.findall(r"--[a-z-]+", problem)


def test_errors_of_a_resume_name_flags_that_exist() -> None:
    known = set().union(*map(flags_of, ("train", "sweep", "tuneup")))
    named = set(named_in_resume_errors())
    assert named
    assert named <= known


def test_a_checkpoint_that_does_not_fit_names_a_flag_of_each_command() -> None:
    named = set(re.findall(r"--[a-z-]+", START_FROM_SCRATCH))
    assert named
    assert all(named <= flags_of(command) for command in ("train", "sweep", "tuneup"))


def test_a_flag_means_the_same_in_every_command() -> None:
    shared = {"--resume", "--new", "--fork", "--extend", "--init-from", "--wait-for-resources", "--json", "--dry-run"}
    kinds: dict[str, set[tuple[str, object]]] = {}
    for command in parsers().values():
        for action in command._actions:
            for flag in shared & set(action.option_strings):
                kinds.setdefault(flag, set()).add((type(action).__name__, action.default))
    assert kinds.keys() == shared
    assert all(len(found) == 1 for found in kinds.values())
