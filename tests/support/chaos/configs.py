"""Commands that chaos happens to: they train a few seconds, at milliseconds per step."""

from typing import Any

BASE: dict[str, Any] = {
    "name": "chaos",
    "model": {"path": "own_net:build"},
    "data": {
        "name": "synthetic",
        "shape": [8],
        "num_classes": 4,
        "num_samples": 64,
        "num_validation_samples": 8,
        "global_batch_size": 16,
    },
    "trainer": {"epochs": 20, "log_every_n_steps": 1, "evaluate_every_n_epochs": 5},
    "checkpoint": {"every_n_steps": 10},
    "tracking": {"offline": "allow"},
}
IN_PROCESS = {**BASE, "scaling": {"num_workers": 0, "use_gpu": False}}
ON_RAY = {**BASE, "scaling": {"num_workers": 2, "cpus_per_worker": 0.5, "use_gpu": False}}
SWEEP = {
    **BASE,
    "scaling": {"num_workers": 1, "cpus_per_worker": 0.5, "use_gpu": False},
    "sweep": {"space": {"optimizer.lr": [0.02, 0.04, 0.08, 0.16]}, "slots": 2},
}
