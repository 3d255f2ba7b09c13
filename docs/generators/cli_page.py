"""`cli.md`: every command with its arguments and options, from argparse."""

import argparse
from collections.abc import Iterator

from generators.markdown import HEAD, code, table
from paceline.cli import build_parser

INTRODUCTION = """\
The result of a command goes to stdout, everything else to stderr. Overrides (`KEY=VALUE`) may stand before, between and
after the options. `paceline COMMAND --help` prints the same. [Exit codes](exit_codes.md) are the same for all commands.

A shell completes commands and options once `eval "$(register-python-argcomplete paceline)"` has run in it."""


def page() -> str:
    """Return the whole page."""
    commands = _commands()
    rows = [[f"[`{name}`](#{name})", summary] for name, (summary, _) in commands.items()]
    lines = ["# Commands", "", HEAD, "", INTRODUCTION, "", *table(["command", "purpose"], rows)]
    for name, (_, parser) in commands.items():
        lines += ["", f"## {name}", "", f"`{_usage(parser)}`", "", parser.description or "", "", *_arguments(parser)]
    return "\n".join([*lines, ""])


def _commands() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Name of each command, with its summary and its parser."""
    group = next(each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    summaries = {each.dest: each.help or "" for each in group._choices_actions}
    return {name: (summaries[name], parser) for name, parser in group.choices.items()}


def _usage(parser: argparse.ArgumentParser) -> str:
    positional = [_positional(each) for each in parser._actions if not each.option_strings]
    return " ".join([parser.prog, *positional, "[OPTION...]"])


def _positional(action: argparse.Action) -> str:
    name = _value_of(action)
    return {"*": f"[{name} ...]", "?": f"[{name}]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


def _value_of(action: argparse.Action) -> str:
    """Return the placeholder of an argument's value; empty for a flag."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        value = _value_of(action)
        names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
        rows.append([", ".join(map(code, names)), _help(action)])
    yield from table(["argument", "meaning"], rows) if rows else ["It takes no arguments."]


def _help(action: argparse.Action) -> str:
    text = action.help or ""
    return text % {**vars(action), "prog": "paceline"} if "%" in text else text
