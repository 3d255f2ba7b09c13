"""`paceline explain`: print what the code of an error or a warning means."""

import argparse
import shutil
import textwrap
from typing import Any

from paceline.errors import OK

WIDEST = 100
"""Longest line, in characters."""


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Print the cause, the fix and an example for the code that a message ends with, such as `unknown-key` of "
        "`... [unknown-key]`. Without a code, list all of them."
    )
    command = commands.add_parser("explain", help="explain the code of an error or a warning", description=text)
    command.add_argument("code", metavar="CODE", nargs="?", help="the code, with or without its brackets")
    command.set_defaults(command=_explain)


def _explain(options: argparse.Namespace) -> int:
    from paceline.explanations import explanations, near_codes

    if options.code is None:
        print("\n\n".join(_all_codes()))
        return OK
    code = options.code.strip("[] ").lower()
    if code not in explanations():
        near = near_codes(code)
        hint = f"did you mean {', '.join(near)}?" if near else "`paceline explain` lists all codes"
        options.refuse(f"no code {code!r}: {hint}")
    found = explanations()[code]
    parts = {"Cause": found.cause, "Fix": found.fix, "Example": found.example}
    print("\n\n".join([found.code, *(_wrapped(f"{name}: {text}") for name, text in parts.items())]))
    return OK


def _all_codes() -> list[str]:
    from paceline.explanations import groups

    return [
        f"{group.title}\n{_wrapped(', '.join(each.code for each in group.explanations), '  ')}" for group in groups()
    ]


def _wrapped(text: str, indent: str = "") -> str:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
