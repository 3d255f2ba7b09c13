"""Sweep from a submitted job.

    ray job submit --runtime-env configs/deploy/runtime_env.yaml -- python jobs/sweep.py CONFIG [KEY=VALUE ...]

The arguments and exit codes are those of `paceline sweep`.
"""

import sys

from paceline.cli import main

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]])
