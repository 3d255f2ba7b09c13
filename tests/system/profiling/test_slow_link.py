"""A link that the kernel makes slow is named, and fewer exchanges fix it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster.hosts import missing

TESTS = Path(__file__).parents[2]
REASON = missing()


@pytest.mark.slow
@pytest.mark.skipif(bool(REASON), reason=REASON)
def test_a_slow_link_is_named_and_fixed() -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "support.slow_link"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kinds"] == ["communication", "communication"]
    lost = told["slow"] - told["plain"]
    back = {name: (told["slow"] - seconds) / lost for name, seconds in told["fixed"].items()}
    print(told, back)
    accumulation, half = (next(back[name] for name in back if key in name) for key in ("accumulation", "comm_hook"))
    assert accumulation >= 0.8
    assert 0.3 < half < 0.7  # half the bytes
