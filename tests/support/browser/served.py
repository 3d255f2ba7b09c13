"""`paceline ui` as a process of its own, and the links that it prints."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 60.0
_REVIEW = re.compile(r"^Review: (\S+)  \(the newest (sweep|run) ")


@dataclass(frozen=True)
class Served:
    """A server that shows a folder's runs."""

    runs: str
    """The page that it prints for all runs."""
    links: dict[str, str]
    """What `paceline ui` printed for the newest `sweep` and the newest `run`."""

    @property
    def address(self) -> str:
        """Where the server answers."""
        return self.runs.partition("/#/experiments?")[0]

    def run(self, experiment_id: str, run_id: str, tab: str = "") -> str:
        """The page of a run; its tabs are `model-metrics`, `artifacts` and so on, the first one is the overview."""
        return f"{self.address}/#/experiments/{experiment_id}/runs/{run_id}" + (f"/{tab}" if tab else "")


@contextmanager
def serve(folder: Path, port: int, kinds: Sequence[str] = ("sweep", "run")) -> Iterator[Served]:
    """Run `paceline ui` in a folder that has `mlflow.db`.

    Args:
        kinds: what is in it, and what links are waited for.
    """
    command = [sys.executable, "-u", "-m", "paceline", "ui", "--port", str(port)]
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield _served(process, kinds)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.wait()


def _served(process: "subprocess.Popen[str]", kinds: Sequence[str]) -> Served:
    assert process.stdout is not None
    runs, links = "", {}
    for line in process.stdout:
        if line.startswith("Runs: "):
            runs = line.split()[1]
        elif found := _REVIEW.match(line):
            links[found[2]] = found[1]
        if set(links) >= set(kinds):
            return Served(runs, links)
    raise AssertionError(f"`paceline ui` printed {links or 'no link'}, and ended")
