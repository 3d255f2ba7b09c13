"""Programs that run on nodes as processes of their own: the exchange of the examination, and the start commands."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from paceline.cluster.network import Rank

CLUSTER = Path(__file__).parents[3] / "cluster.yaml"
PROGRAM = """
import json, sys
from paceline.cluster.network import Rank
print(json.dumps(Rank("127.0.0.1").measure(int(sys.argv[1]), 2, sys.argv[2], "gloo", [4, 2**20])))
"""


def test_two_processes_measure_the_same() -> None:
    command = [sys.executable, "-c", PROGRAM]
    meeting = Rank("127.0.0.1").meeting()
    ranks = [subprocess.Popen([*command, str(rank), meeting], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        found = [json.loads(rank.communicate(timeout=90)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert found[0] == found[1]
    assert [size for size, _ in found[0]] == [4, 2**20]
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
