"""Tells Ray when AWS is about to take this spot instance away. Runs on each worker of `cluster.yaml`, needs no package.

    python watch_spot.py ADDRESS_OF_THE_HEAD

Ray then starts nothing new here, and training saves its state until the instance goes, two minutes later. The notice:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime

METADATA = os.environ.get("SPOT_METADATA", "http://169.254.169.254")
LOOK_SECONDS = 5.0
DRAIN_SECONDS = 20.0
"""How long Ray may take to hear of it, before it is told again."""
MARGIN_SECONDS = 10
"""Before the instance goes: Ray needs a moment, too."""


def notice() -> float | None:
    """When the instance is taken away, in seconds since 1970; None as long as it is not."""
    try:
        token = _ask("PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        action = json.loads(_ask("GET", "meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}))
        return datetime.strptime(action["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except (OSError, ValueError, KeyError):  # 404: nothing is planned
        return None


def drain(head: str, end: float) -> bool:
    """Tell Ray that this node goes; whether it has heard."""
    left = max(1, int(end - time.time()) - MARGIN_SECONDS)
    command = ["ray", "drain-node", f"--address={head}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message=spot instance", f"--deadline-remaining-seconds={left}"]
    try:
        return subprocess.run(command, check=False, timeout=DRAIN_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _ask(method: str, path: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(f"{METADATA}/latest/{path}", headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=2) as answer:
        return str(answer.read().decode())


def main() -> None:
    """Look every few seconds, until Ray has been told."""
    (head,) = sys.argv[1:]
    while (end := notice()) is None or not drain(head, end):
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
