"""The sweep with Paceline. peers.py runs it and explains it.

python paceline_sweep.py TRACKING_URI FOLDER BATCH_SIZE...
"""

import sys
from pathlib import Path

from probe import note_step  # measured

from paceline import Callback, load_config, sweep


class NoteSteps(Callback):  # measured
    def on_step_end(self, ctx):  # measured
        config = ctx.config  # measured
        note_step(config.data.global_batch_size, config.optimizer.lr, ctx.step)  # measured


if __name__ == "__main__":
    uri, folder, *batch_sizes = sys.argv[1:]
    space = {"data.global_batch_size": [int(each) for each in batch_sizes], "optimizer.lr": [0.05, 0.1]}
    changes = {"tracking.uri": uri, "storage.path": folder, "sweep.space": space}
    result = sweep(load_config(Path(__file__).with_suffix(".yaml"), changes))
    print(result.best)
