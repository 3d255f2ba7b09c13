"""Programs that run on nodes as processes of their own: the exchange of the examination, and the start commands."""

import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

from paceline.cluster.network import Rank
from support.forkserver import CONTEXT

CLUSTER = Path(__file__).parents[3] / "cluster.yaml"
HERE = "127.0.0.1"


def test_two_processes_measure_the_same() -> None:
    meeting, sizes = Rank(HERE).meeting(), [4, 2**20]
    with ProcessPoolExecutor(2, CONTEXT, initializer=Rank, initargs=(HERE,)) as processes:
        ranks = [processes.submit(Rank(HERE).measure, rank, 2, meeting, "gloo", sizes) for rank in range(2)]
        found = [rank.result(timeout=90) for rank in ranks]
    assert found[0] == found[1]
    assert [size for size, _ in found[0]] == sizes
    assert all(0 < seconds < 30 for _, seconds in found[0])


def test_no_command_ends_the_shell_that_runs_it() -> None:
    """Ray runs each as `bash -c '... (COMMAND)'`: a pattern that finds itself ends it."""
    tree = yaml.safe_load(CLUSTER.read_text())
    commands = [*tree["head_start_ray_commands"], *tree["worker_start_ray_commands"]]
    killing = [command for command in commands if "pkill" in command]
    assert len(killing) == 2
    for command in killing:
        shown = command.replace("pkill -f", "pgrep -f")
        wrapped = ["bash", "-c", f"echo $$; true && (echo $BASHPID; {shown})"]
        shell, within, *found = subprocess.run(wrapped, capture_output=True, text=True).stdout.split()
        assert not {shell, within} & set(found), command
