"""`errors.md`: the section of each code, from the texts that `paceline explain` prints."""

from collections.abc import Iterator

from generators.markdown import HEAD, table
from paceline.explanations import Explanation, Group, groups

INTRODUCTION = """\
The message of an error, a warning or a finding of lint ends with its code in brackets. `paceline explain CODE` prints
the section of a code. In Python a code is `error.code`, for config errors also `error.problems[0].code`; with `--json`
it is `code`. [Exit codes](exit_codes.md) are fewer: they name the kind of failure."""


def page() -> str:
    """Return the whole page."""
    lines = ["# Errors and warnings", "", HEAD, "", INTRODUCTION, "", *table(["group", "codes"], map(_row, groups()))]
    for group in groups():
        lines += ["", f"## {group.title}", "", group.introduction]
        lines += [line for each in group.explanations for line in _section(each)]
    return "\n".join([*lines, ""])


def _row(group: Group) -> list[str]:
    return [group.title, ", ".join(f"[`{each.code}`](#{each.code})" for each in group.explanations)]


def _section(each: Explanation) -> Iterator[str]:
    yield from ["", f"### {each.code}"]
    for name, text in {"Cause": each.cause, "Fix": each.fix, "Example": each.example}.items():
        yield from ["", f"**{name}.** {text}"]
