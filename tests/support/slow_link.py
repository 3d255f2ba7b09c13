"""A training over a link that is really slow; to be run by `unshare --net`, in a network namespace of its own.

Prints as JSON what was named on each rank, and seconds per sample without the slow link, with it, and with each fix.
"""

import json
import subprocess
from typing import Any

from paceline.engine.dist_context import DistContext
from paceline.profiling.diagnosis import diagnose
from paceline.profiling.fixes import Fix
from paceline.profiling.splitting import split_steps
from support.bottlenecks import Plant
from support.ranks import run_ranks

RATE = "200mbit"
"""For both directions: the 0.9 MB of gradients take some 70 ms."""
PLANT = Plant(ranks=2)


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


def seconds_with(ranks: DistContext, overrides: dict[str, Any]) -> float:
    """Per sample."""
    config = PLANT.config().with_overrides(overrides)
    return split_steps(PLANT.build(config, ranks), 10, 2).sample_seconds


def named(ranks: DistContext) -> tuple[str, tuple[Fix, ...]]:
    """The bottleneck's kind and its fixes."""
    found = diagnose(PLANT.config(), lambda config: PLANT.build(config, ranks), 10, 2).bottleneck
    return found.kind, found.fixes


def main() -> None:
    run("ip", "link", "set", "lo", "up")
    plain = run_ranks(seconds_with, 2, {})[0]
    run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE, "burst", "256kb", "latency", "1000ms")
    of_ranks = run_ranks(named, 2, timeout=100)
    (_, fixes), *_ = of_ranks
    slow = run_ranks(seconds_with, 2, {}, timeout=100)[0]
    fixed = {"+".join(fix.overrides): run_ranks(seconds_with, 2, fix.overrides, timeout=200)[0] for fix in fixes}
    print(json.dumps({"kinds": [kind for kind, _ in of_ranks], "plain": plain, "slow": slow, "fixed": fixed}))


if __name__ == "__main__":
    main()
