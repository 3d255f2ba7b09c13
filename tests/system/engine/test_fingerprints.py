"""Fingerprints of data sets across processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from paceline.engine.dataset_identity import fingerprint, identities, read_contents
from support.toys import Points, fit, toy_config

TESTS = Path(__file__).resolve().parents[2]


def test_loader_processes_a_cache_and_the_seed_change_nothing() -> None:
    def reported(**overrides: Any) -> list[dict[str, Any]]:
        return [details for kind, details in fit(toy_config(**overrides))[2].events if kind == "datasets"]

    assert reported(data__num_workers=2, data__cache="memory", seed=7) == reported()


class OpensItsFile(Points):
    """Opens its file when it is first asked, as is usual with loader processes; one sample cannot be loaded."""

    is_open = False

    def __getitem__(self, index: int) -> Any:
        self.is_open = True
        if index == 29:
            raise OSError
        return super().__getitem__(index)


def test_with_loader_processes_nothing_is_opened_in_this_one() -> None:
    train, validation = OpensItsFile(20), OpensItsFile(30)
    found = identities("mine", read_contents({"training": train, "validation": validation}, num_workers=1))
    assert (train.is_open, validation.is_open) == (False, False)
    assert found["training"]["fingerprint"]
    assert found["validation"]["fingerprint"] is None


def test_another_process_finds_the_same() -> None:
    code = (
        "from support.toys import Points\nfrom paceline.engine.dataset_identity import fingerprint\n"
        "print(fingerprint(Points(96, noisy=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(Points(96, noisy=True))
