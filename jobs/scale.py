"""Find batch size and learning rate from a submitted job.

    ray job submit --runtime-env configs/deploy/runtime_env.yaml -- python jobs/scale.py CONFIG [KEY=VALUE ...]

The arguments and exit codes are those of `paceline scale`.
"""

import sys

from paceline.cli import main

if __name__ == "__main__":
    main(["scale", *sys.argv[1:]])
