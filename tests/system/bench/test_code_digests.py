"""Digests of user code in several processes."""

import os
import subprocess
import sys
from pathlib import Path

from support.bench.user_script import SCRIPT

TESTS = Path(__file__).parents[2]


def test_every_process_computes_the_same_digests(tmp_path: Path) -> None:
    """Python orders sets otherwise in each, and what travels to a worker is made anew there."""
    script = SCRIPT.replace("functools.cached_property", "property")  # which has a lock, that nothing can send
    (tmp_path / "main.py").write_text(
        f"{script}\nimport sys\nfrom ray import cloudpickle\n\n"
        "sys.path.insert(0, sys.argv[1])\nfrom support.bench.user_script import digests_of\n\n"
        "print(digests_of(build))\nprint(digests_of(cloudpickle.loads(cloudpickle.dumps(build))))\n"
    )
    told = set()
    for seed in ("1", "2"):
        command = [sys.executable, "main.py", str(TESTS)]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        told |= set(done.stdout.splitlines())
    assert len(told) == 1
    assert b"model: WIDTH" in told.pop()
