"""Train from a submitted job.

    ray job submit --runtime-env configs/deploy/runtime_env.yaml -- python jobs/train.py CONFIG [KEY=VALUE ...]

The arguments and exit codes are those of `paceline train`.
"""

import sys

from paceline.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
