"""Tune a config from a submitted job.

    ray job submit --runtime-env configs/deploy/runtime_env.yaml -- python jobs/tuneup.py CONFIG [KEY=VALUE ...]

The arguments and exit codes are those of `paceline tuneup`.
"""

import sys

from paceline.cli import main

if __name__ == "__main__":
    main(["tuneup", *sys.argv[1:]])
