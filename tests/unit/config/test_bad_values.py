"""Wrong keys and wrong values: a code, the dotted key, the line, what is wrong, and the cure.

The text follows the three lines of a good config, unless it begins with `name:` or `model:` itself.
"""

from collections.abc import Callable

import pytest

Refused = Callable[..., None]

KEYS = [
    ("trainer: {epoch: 3}\n", "unknown-key", "trainer.epoch", 4),
    ("trianer: {epochs: 3}\n", "unknown-key", "trianer", 4),
    ("epochs: 3\n", "unknown-key", "epochs", 4),
    ("trainer:\n  lr: 1\n", "unknown-key", "trainer.lr", 5),
    ("batch_size: 3\n", "unknown-key", "batch_size", 4),
    ("scaling: {zzz: 1}\n", "unknown-key", "scaling.zzz", 4),
    ("optimizer: {name: adamw, momentum: 0.9}\n", "unknown-key", "optimizer.momentum", 4),
    ("model: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n", "missing-key", "name", 1),
    ("name: x\ndata: {path: 'own_nets:data'}\n", "missing-key", "model", 1),
    ("name: x\nmodel: {path: 'own_nets:data'}\n", "missing-key", "data", 1),
    ("trainer:\nseed: 1\n", "wrong-type", "trainer", 4),
    ("trainer: [1]\n", "wrong-type", "trainer", 4),
]

VALUES = [
    ("seed: one\n", "wrong-type", "seed", 4),
    ("seed: '7'\n", "wrong-type", "seed", 4),
    ("trainer: {max_steps: 1e3}\n", "wrong-type", "trainer.max_steps", 4),
    ("trainer:\n  epochs: 1.5\n", "wrong-type", "trainer.epochs", 5),
    ("seed: true\n", "wrong-type", "seed", 4),
    ("seed: [1]\n", "wrong-type", "seed", 4),
    ("seed: null\n", "wrong-type", "seed", 4),
    ("trainer: {deterministic: yes}\n", "wrong-type", "trainer.deterministic", 4),
    ("optimizer: {name: sgd, nesterov: no}\n", "wrong-type", "optimizer.nesterov", 4),
    ("tracking: {uri: 5}\n", "wrong-type", "tracking.uri", 4),
    ("storage:\n  path: {a: b}\n", "wrong-type", "storage.path", 5),
    ("trainer: {epochs: 010}\n", "wrong-type", "trainer.epochs", 4),
    ("seed: 00\n", "wrong-type", "seed", 4),
    ("seed: -007\n", "wrong-type", "seed", 4),
    ("trainer: {epochs: 1:30}\n", "wrong-type", "trainer.epochs", 4),
    ("seed: 2024-01-01\n", "wrong-type", "seed", 4),
    ("seed: -1\n", "out-of-range", "seed", 4),
    ("seed: 9223372036854775808\n", "out-of-range", "seed", 4),
    ("trainer: {epochs: 0}\n", "out-of-range", "trainer.epochs", 4),
    ("trainer: {max_grad_norm: 0}\n", "out-of-range", "trainer.max_grad_norm", 4),
    ("optimizer: {name: sgd, momentum: 1.0}\n", "out-of-range", "optimizer.momentum", 4),
    ("scaling: {gpus_per_worker: 65}\n", "out-of-range", "scaling.gpus_per_worker", 4),
    ("storage: {path: ''}\n", "out-of-range", "storage.path", 4),
    ("lr_scheduler: {name: cosine, warmup_epochs: 1e308}\n", "out-of-range", "lr_scheduler.warmup_epochs", 4),
    ("lr_scheduler: {name: step, every_n_epochs: 1e-300}\n", "out-of-range", "lr_scheduler.every_n_epochs", 4),
    ("trainer: {epochs: 1000001}\n", "out-of-range", "trainer.epochs", 4),
    ("trainer: {max_steps: 1000000000001}\n", "out-of-range", "trainer.max_steps", 4),
    ("trainer: {max_grad_norm: 1e30}\n", "out-of-range", "trainer.max_grad_norm", 4),
    ("checkpoint: {keep: 1000001}\n", "out-of-range", "checkpoint.keep", 4),
    ("parallel: {timeout_seconds: 0.5}\n", "out-of-range", "parallel.timeout_seconds", 4),
    ("parallel: {bucket_cap_mb: 1e-9}\n", "out-of-range", "parallel.bucket_cap_mb", 4),
    ("scaling: {cpus_per_worker: 1e308}\n", "out-of-range", "scaling.cpus_per_worker", 4),
    ("scaling: {cpus_per_worker: 1e-9}\n", "out-of-range", "scaling.cpus_per_worker", 4),
    ("optimizer: {name: sgd, lr: 1e300}\n", "out-of-range", "optimizer.lr", 4),
    ("optimizer: {name: adamw, eps: 1e-300}\n", "out-of-range", "optimizer.eps", 4),
    ("optimizer: {name: sgd, lr: .nan}\n", "not-finite", "optimizer.lr", 4),
    ("optimizer:\n  name: sgd\n  lr: .inf\n", "not-finite", "optimizer.lr", 6),
    ("optimizer: {name: sgd, lr: 1e999}\n", "not-finite", "optimizer.lr", 4),
    ("task:\n  path: 'own_nets:build'\n  args:\n    a: [1, .inf]\n", "not-finite", "task.args.a.1", 7),
    ("task: {path: 'own_nets:build', args: {x: .nan}}\n", "not-finite", "task.args.x", 4),
    ('task: {path: "own_nets:build", args: {x: "\\uD800"}}\n', "wrong-type", "task.args.x", 4),
    ('task: {path: "own_nets:build", args: {x: [{y: "\\uD800"}]}}\n', "wrong-type", "task.args.x.0.y", 4),
    ('storage: {path: "a\\0b"}\n', "wrong-type", "storage.path", 4),
    ('tracking: {uri: "a\\0b"}\n', "wrong-type", "tracking.uri", 4),
    ('tracking: {experiment: "a\\0b"}\n', "wrong-type", "tracking.experiment", 4),
    ("trainer: {activation_checkpointing: off}\n", "bad-choice", "trainer.activation_checkpointing", 4),
    ("optimizer: {name: sgd, lr_scaling: false}\n", "bad-choice", "optimizer.lr_scaling", 4),
    ("optimizer: {name: sgd, lr_scaling: null}\n", "bad-choice", "optimizer.lr_scaling", 4),
    ("trainer: {precision: bf16}\n", "bad-choice", "trainer.precision", 4),
    ("trainer: {precision: 32}\n", "bad-choice", "trainer.precision", 4),
    ("scaling: {placement: Spred}\n", "bad-choice", "scaling.placement", 4),
    ("scaling: {use_gpu: atuo}\n", "bad-choice", "scaling.use_gpu", 4),
    ("parallel: {strategy: deepspeed}\n", "bad-choice", "parallel.strategy", 4),
    ("name: ../run\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n", "bad-text", "name", 1),
    ("name: a/b\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n", "bad-text", "name", 1),
    ("name: 12\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n", "wrong-type", "name", 1),
]


@pytest.mark.parametrize(("text", "code", "key", "line"), KEYS)
def test_wrong_keys(text: str, code: str, key: str, line: int, refused: Refused) -> None:
    refused(text, code, key, line)


@pytest.mark.parametrize(("text", "code", "key", "line"), VALUES)
def test_wrong_values(text: str, code: str, key: str, line: int, refused: Refused) -> None:
    refused(text, code, key, line)
