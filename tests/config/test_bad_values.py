"""Wrong keys and wrong values: a code, the dotted key, the line, what is wrong, and the cure.

The text follows the three lines of a good config, unless it begins with `name:` or `model:` itself.
"""

from collections.abc import Callable

import pytest

Refused = Callable[..., None]

KEYS = [
    ("trainer: {epoch: 3}\n", "unknown-key", "trainer.epoch", 4, "did you mean trainer.epochs?"),
    ("trianer: {epochs: 3}\n", "unknown-key", "trianer", 4, "did you mean trainer?"),
    ("epochs: 3\n", "unknown-key", "epochs", 4, "did you mean trainer.epochs?"),
    ("trainer:\n  lr: 1\n", "unknown-key", "trainer.lr", 5, "did you mean optimizer.lr?"),
    ("batch_size: 3\n", "unknown-key", "batch_size", 4, "did you mean data.global_batch_size?"),
    ("scaling: {zzz: 1}\n", "unknown-key", "scaling.zzz", 4, "num_workers ... placement"),
    ("optimizer: {name: adamw, momentum: 0.9}\n", "unknown-key", "optimizer.momentum", 4, ""),
    (
        "model: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n",
        "missing-key",
        "name",
        1,
        "is missing ... letters",
    ),
    ("name: x\ndata: {path: 'own_nets:data'}\n", "missing-key", "model", 1, "{name: ...}"),
    ("name: x\nmodel: {path: 'own_nets:data'}\n", "missing-key", "data", 1, "missing"),
    ("trainer:\nseed: 1\n", "wrong-type", "trainer", 4, "null ... indented"),
    ("trainer: [1]\n", "wrong-type", "trainer", 4, "must be a mapping, not a list"),
]

VALUES = [
    ("seed: one\n", "wrong-type", "seed", 4, "whole number, not 'one'"),
    ("seed: '7'\n", "wrong-type", "seed", 4, "write 7 without quotes"),
    ("trainer: {max_steps: 1e3}\n", "wrong-type", "trainer.max_steps", 4, "write 1000"),
    ("trainer:\n  epochs: 1.5\n", "wrong-type", "trainer.epochs", 5, "whole number"),
    ("seed: true\n", "wrong-type", "seed", 4, "not true"),
    ("seed: [1]\n", "wrong-type", "seed", 4, "not a list"),
    ("seed: null\n", "wrong-type", "seed", 4, "not null"),
    ("trainer: {deterministic: yes}\n", "wrong-type", "trainer.deterministic", 4, "write true"),
    ("optimizer: {name: sgd, nesterov: no}\n", "wrong-type", "optimizer.nesterov", 4, "write false"),
    ("tracking: {uri: 5}\n", "wrong-type", "tracking.uri", 4, "quotes: '5'"),
    ("storage:\n  path: {a: b}\n", "wrong-type", "storage.path", 5, "text, not a mapping"),
    ("trainer: {epochs: 010}\n", "wrong-type", "trainer.epochs", 4, "'010' (write 10)"),
    ("seed: 00\n", "wrong-type", "seed", 4, "(write 0)"),
    ("seed: -007\n", "wrong-type", "seed", 4, "(write -7)"),
    ("trainer: {epochs: 1:30}\n", "wrong-type", "trainer.epochs", 4, "'1:30'"),
    ("seed: 2024-01-01\n", "wrong-type", "seed", 4, "'2024-01-01'"),
    ("seed: -1\n", "out-of-range", "seed", 4, "at least 0, not -1"),
    ("seed: 9223372036854775808\n", "out-of-range", "seed", 4, "at most 9223372036854775807"),
    ("trainer: {epochs: 0}\n", "out-of-range", "trainer.epochs", 4, "at least 1, not 0"),
    ("trainer: {max_grad_norm: 0}\n", "out-of-range", "trainer.max_grad_norm", 4, "more than 0"),
    ("optimizer: {name: sgd, momentum: 1.0}\n", "out-of-range", "optimizer.momentum", 4, "less than 1"),
    ("scaling: {gpus_per_worker: 65}\n", "out-of-range", "scaling.gpus_per_worker", 4, "at most 64 or auto"),
    ("storage: {path: ''}\n", "out-of-range", "storage.path", 4, "at least 1 characters"),
    ("lr_scheduler: {name: cosine, warmup_epochs: 1e308}\n", "out-of-range", "lr_scheduler.warmup_epochs", 4, "1e+06"),
    ("lr_scheduler: {name: step, every_n_epochs: 1e-300}\n", "out-of-range", "lr_scheduler.every_n_epochs", 4, "0.001"),
    ("trainer: {epochs: 1000001}\n", "out-of-range", "trainer.epochs", 4, "at most 1000000, not 1000001"),
    ("trainer: {max_steps: 1000000000001}\n", "out-of-range", "trainer.max_steps", 4, "at most 1000000000000"),
    ("trainer: {max_grad_norm: 1e30}\n", "out-of-range", "trainer.max_grad_norm", 4, "at most 1e+20"),
    ("checkpoint: {keep: 1000001}\n", "out-of-range", "checkpoint.keep", 4, "at most 1000000"),
    ("parallel: {timeout_seconds: 0.5}\n", "out-of-range", "parallel.timeout_seconds", 4, "at least 1, not 0.5"),
    ("parallel: {bucket_cap_mb: 1e-9}\n", "out-of-range", "parallel.bucket_cap_mb", 4, "at least 0.001"),
    ("scaling: {cpus_per_worker: 1e308}\n", "out-of-range", "scaling.cpus_per_worker", 4, "at most 4096"),
    ("scaling: {cpus_per_worker: 1e-9}\n", "out-of-range", "scaling.cpus_per_worker", 4, "at least 0.001"),
    ("optimizer: {name: sgd, lr: 1e300}\n", "out-of-range", "optimizer.lr", 4, "at most 1e+06"),
    ("optimizer: {name: adamw, eps: 1e-300}\n", "out-of-range", "optimizer.eps", 4, "at least 1e-30"),
    ("optimizer: {name: sgd, lr: .nan}\n", "not-finite", "optimizer.lr", 4, "finite number, not .nan"),
    ("optimizer:\n  name: sgd\n  lr: .inf\n", "not-finite", "optimizer.lr", 6, "not .inf"),
    ("optimizer: {name: sgd, lr: 1e999}\n", "not-finite", "optimizer.lr", 4, "finite"),
    (
        "task:\n  path: 'own_nets:build'\n  args:\n    a: [1, .inf]\n",
        "not-finite",
        "task.args.a.1",
        7,
        "finite number, not .inf ... float() on it",
    ),
    ("task: {path: 'own_nets:build', args: {x: .nan}}\n", "not-finite", "task.args.x", 4, "not .nan ... write text"),
    ('task: {path: "own_nets:build", args: {x: "\\uD800"}}\n', "wrong-type", "task.args.x", 4, "valid characters"),
    (
        'task: {path: "own_nets:build", args: {x: [{y: "\\uD800"}]}}\n',
        "wrong-type",
        "task.args.x.0.y",
        4,
        "text of valid characters, not ... ud800",
    ),
    ('storage: {path: "a\\0b"}\n', "wrong-type", "storage.path", 4, "text of valid characters, not 'a\\x00b'"),
    ('tracking: {uri: "a\\0b"}\n', "wrong-type", "tracking.uri", 4, "valid characters"),
    ('tracking: {experiment: "a\\0b"}\n', "wrong-type", "tracking.experiment", 4, "valid characters"),
    ("trainer: {activation_checkpointing: off}\n", "bad-choice", "trainer.activation_checkpointing", 4, "write none"),
    ("optimizer: {name: sgd, lr_scaling: false}\n", "bad-choice", "optimizer.lr_scaling", 4, "write none"),
    ("optimizer: {name: sgd, lr_scaling: null}\n", "bad-choice", "optimizer.lr_scaling", 4, "write none"),
    ("trainer: {precision: bf16}\n", "bad-choice", "trainer.precision", 4, "did you mean bf16-mixed?"),
    ("trainer: {precision: 32}\n", "bad-choice", "trainer.precision", 4, "did you mean 32-true?"),
    ("scaling: {placement: Spred}\n", "bad-choice", "scaling.placement", 4, "did you mean spread?"),
    ("scaling: {use_gpu: atuo}\n", "bad-choice", "scaling.use_gpu", 4, "true or false or auto ... did you mean auto?"),
    ("parallel: {strategy: deepspeed}\n", "bad-choice", "parallel.strategy", 4, "ddp"),
    (
        "name: ../run\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n",
        "bad-text",
        "name",
        1,
        "'../run' ... letters",
    ),
    (
        "name: a/b\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n",
        "bad-text",
        "name",
        1,
        "not allowed",
    ),
    (
        "name: 12\nmodel: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n",
        "wrong-type",
        "name",
        1,
        "quotes: '12'",
    ),
]


@pytest.mark.parametrize(("text", "code", "key", "line", "words"), KEYS)
def test_wrong_keys(text: str, code: str, key: str, line: int, words: str, refused: Refused) -> None:
    refused(text, code, key, line, words)


@pytest.mark.parametrize(("text", "code", "key", "line", "words"), VALUES)
def test_wrong_values(text: str, code: str, key: str, line: int, words: str, refused: Refused) -> None:
    refused(text, code, key, line, words)
