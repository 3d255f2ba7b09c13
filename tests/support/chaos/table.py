"""The table of what the chaos tests did, from pytest's JUnit files.

uv run pytest tests/system/chaos -n 0 -m "slow or not slow" --junitxml chaos.xml
uv run python tests/support/chaos/table.py chaos.xml
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

HEADING = "| seed | victim | act | at | exit codes | recovered in | held |\n|---|---|---|---|---|---|---|"


def outcomes(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the test's file and what was recorded of each seed, with `held` added."""
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        for found in case.iter("property"):
            if found.get("name") == "chaos":
                held = case.find("failure") is None and case.find("error") is None
                yield str(case.get("classname")), {**json.loads(str(found.get("value"))), "held": held}


def row(outcome: dict[str, Any]) -> str:
    """Return a line of the table."""
    chaos, recovery = outcome["chaos"], outcome["recovery_seconds"]
    act = f"stopped {chaos['stop_seconds']:.0f} s" if chaos["stop_seconds"] else "killed"
    cells = (
        *(chaos["seed"], chaos["victim"], act, f"{outcome['struck_seconds']:.1f} s"),
        " ".join(map(str, outcome["exit_codes"])),
        "-" if recovery is None else f"{recovery:.1f} s",
        "yes" if outcome["held"] else "NO",
    )
    return f"| {' | '.join(map(str, cells))} |"


def table(tests: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return one table for each file of tests, and how many seeds held, with the times to recover."""
    by_file = defaultdict(list)
    for name, outcome in tests:
        by_file[name.rpartition(".")[2]].append(outcome)
    parts = []
    for name, those in sorted(by_file.items()):
        times = [each["recovery_seconds"] for each in those if each["recovery_seconds"] is not None]
        held = sum(each["held"] for each in those)
        summary = f"{held} of {len(those)} held"
        if times:
            summary += f"; recovered in {median(times):.1f} s (median), {max(times):.1f} s (largest)"
        parts.append("\n".join((f"## {name}", "", f"{summary}.", "", HEADING, *map(row, those), "")))
    return "\n".join(parts)


if __name__ == "__main__":
    print(table(found for name in sys.argv[1:] for found in outcomes(Path(name))))
