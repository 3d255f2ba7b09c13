"""Plants known faults in copies of the checkout, one at a time, and reports which of them the tests catch.

    uv run python tests/faults/plant.py                     all faults of faults.yaml: about an hour on two cores
    uv run python tests/faults/plant.py --only warmup-one-step-late --json found.json
    uv run python tests/faults/plant.py --check             only whether each fault can still be planted

For each fault the tests that it names run first, then those of its room, and with `--whole` the entire suite, up to
the first test that fails, and fails again by itself. Where one does without the fault, the verdict is `unusable`; where
a file cannot be collected, `broken`. The checkout itself is never changed.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.yaml")
PYTEST = ("-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider")
STOP_SECONDS = 15.0
LEAST_LIMIT_SECONDS, SLOWER = 120.0, 5.0
"""A fault may make code loop for ever: tests have caught it that take longer than this, and so many times as long as
without the fault."""

Verdict = Literal["caught", "not caught", "broken", "unusable"]


@dataclass(frozen=True)
class Fault:
    """One entry of faults.yaml."""

    name: str
    room: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def plant(self, root: Path) -> None:
        """Put the fault into a copy."""
        source = (root / self.file).read_text()
        (root / self.file).write_text(source.replace(self.old, self.new))

    def stages(self, whole: bool) -> Iterator[tuple[str, ...]]:
        """The sets of tests to run, one after the other."""
        yield tuple(f"tests/{each}" for each in self.tests)
        rooms = (f"tests/{layer}/{self.room}" for layer in ("unit", "system", "system/in_process"))
        if found := tuple(each for each in rooms if (ROOT / each).is_dir()):
            yield found
        if whole:
            yield ("tests",)


@dataclass(frozen=True)
class Found:
    """What became of a fault."""

    name: str
    room: str
    breaks: str
    verdict: Verdict
    by: str = ""
    """The first test that failed; or the file that could not be collected, or the test that fails without the fault."""
    seconds: float = 0.0
    """Of the runs with the fault, up to that failure."""


def read_faults() -> list[Fault]:
    """The faults of faults.yaml."""
    entries = yaml.safe_load(FAULTS.read_text())
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def cannot_be_planted(fault: Fault) -> str:
    """Why not; empty when it can."""
    count = (ROOT / fault.file).read_text().count(fault.old) if (ROOT / fault.file).is_file() else 0
    return "" if count == 1 else f"{fault.name}: `old` occurs {count} times in {fault.file}, not once"


@contextmanager
def copied_checkout() -> Iterator[Path]:
    """A copy of all files that git knows or would add, in a temporary folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def run_tests(root: Path, tests: Sequence[str], limit_seconds: float | None = None) -> tuple[str, float]:
    """Run tests of a copy up to the first failure: its node id (a file that cannot be collected: its path), seconds."""
    command = [sys.executable, *PYTEST, *tests]
    environment = {**os.environ, "PYTHONPATH": str(root / "platform")}
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as file:  # a pipe would stay open as long as any process that a test has left
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            stop(process)
            return f"{tests[0]}::no end within {limit_seconds:.0f} s", time.monotonic() - begun
        except BaseException:  # Ctrl-C, say
            stop(process)
            raise
        file.seek(0)
        summary = file.read().rpartition("short test summary info")[2]
    failure = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", summary, re.MULTILINE)
    named = failure[1] if failure else f"pytest's exit code {process.returncode}"
    return ("" if process.returncode == 0 else named), time.monotonic() - begun


def first_failure(root: Path, tests: Sequence[str], limit_seconds: float | None = None) -> tuple[str, float]:
    """The same, passing over tests that succeed when they are run again."""
    shaky: list[str] = []
    while True:
        failure, seconds = run_tests(root, [*tests, *(f"--deselect={each}" for each in shaky)], limit_seconds)
        if "::" not in failure or "::no end" in failure or run_tests(root, [failure], limit_seconds)[0]:
            return failure, seconds
        shaky.append(failure)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt pytest, which ends what its tests have started, then kill what is left."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)


@cache
def failure_without_fault(tests: tuple[str, ...]) -> tuple[str, float]:
    """The test that fails in a copy as it is, empty when all pass, and the seconds."""
    with copied_checkout() as root:
        return first_failure(root, tests)


def examine(fault: Fault, whole: bool) -> Found:
    """Plant a fault, and see which test catches it."""
    about, seconds = (fault.name, fault.room, fault.breaks), 0.0
    for tests in fault.stages(whole):
        failure, usual = failure_without_fault(tests)
        if failure:
            return Found(*about, "unusable", failure)
        with copied_checkout() as root:
            fault.plant(root)
            failure, took = first_failure(root, tests, max(LEAST_LIMIT_SECONDS, SLOWER * usual))
        seconds = round(seconds + took, 1)
        if failure:
            return Found(*about, "caught" if "::" in failure else "broken", failure, seconds)
    return Found(*about, "not caught", "", seconds)


def save(file: Path, found: Found) -> None:
    """Add a result to a JSON file, in place of an earlier one of the same fault."""
    earlier = json.loads(file.read_text()) if file.exists() else []
    results = {each["name"]: each for each in [*earlier, asdict(found)]}
    names = [fault.name for fault in read_faults()]
    file.write_text(json.dumps([results[name] for name in names if name in results], indent=1) + "\n")


def main() -> int:
    """Returns 0 when all faults are caught, 1 when some are not, 2 when some cannot be planted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--check", action="store_true", help="check that each fault can be planted and stop")
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help="only these faults")
    parser.add_argument("--whole", action="store_true", help="run the entire suite on what is not caught otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, replacing those of these faults")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if not options.only or fault.name in options.only]
    if unknown := {*(options.only or ())} - {fault.name for fault in faults}:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}: see --list")
    if lines := list(filter(None, map(cannot_be_planted, faults))):
        print("\n".join(lines), file=sys.stderr)
        return 2
    if options.list or options.check:
        print("\n".join(f"{fault.room:13} {fault.name:34} {fault.breaks}" for fault in faults if options.list))
        return 0
    verdicts = []
    for fault in faults:
        found = examine(fault, options.whole)
        print(f"{found.room:13} {found.name:34} {found.verdict:10} {found.seconds:6.1f} s  {found.by}", flush=True)
        verdicts.append(found.verdict)
        if options.json:
            save(options.json, found)
    print(f"{verdicts.count('caught')} of {len(verdicts)} faults were caught")
    return 0 if verdicts.count("caught") == len(verdicts) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
