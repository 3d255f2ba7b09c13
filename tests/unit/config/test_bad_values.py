"""Wrong keys, values and components: a code, the dotted key, the line, what is wrong, and the fix."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.loading import load_config
from paceline.errors import BAD_CONFIG, ConfigError

OWN = "model: {path: 'own_nets:build'}\ndata: {path: 'own_nets:data'}\n"
MODEL = "name: x\nmodel: {path: 'own_nets:build'}\n"

KEYS = [
    ("trainer: {epoch: 3}\n", "unknown-key", "trainer.epoch", 4),
    ("epochs: 3\n", "unknown-key", "epochs", 4),
    ("batch_size: 3\n", "unknown-key", "batch_size", 4),
    ("scaling: {zzz: 1}\n", "unknown-key", "scaling.zzz", 4),
    ("optimizer: {name: adamw, momentum: 0.9}\n", "unknown-key", "optimizer.momentum", 4),
    (MODEL + "data:\n  name: mnist5k\n  augmentation: {flip: true}\n", "unknown-key", "data.augmentation.flip", 5),
    (OWN, "missing-key", "name", 1),
    ("name: x\ndata: {path: 'own_nets:data'}\n", "missing-key", "model", 1),
    (MODEL + "data: {name: image_folder}\n", "missing-key", "data.root", 3),
    ("trainer:\nseed: 1\n", "wrong-type", "trainer", 4),
    ("scale: {workers: [0]}\n", "out-of-range", "scale.workers.0", 4),
    ("scale: {workers: {a: 1}}\n", "wrong-type", "scale.workers", 4),
]
VALUES = [
    ("seed: '7'\n", "wrong-type", "seed", 4),
    ("trainer: {max_steps: 1e3}\n", "wrong-type", "trainer.max_steps", 4),
    ("trainer:\n  epochs: 1.5\n", "wrong-type", "trainer.epochs", 5),
    ("seed: true\n", "wrong-type", "seed", 4),
    ("seed: null\n", "wrong-type", "seed", 4),
    ("trainer: {deterministic: yes}\n", "wrong-type", "trainer.deterministic", 4),
    ("tracking: {uri: 5}\n", "wrong-type", "tracking.uri", 4),
    ("storage:\n  path: {a: b}\n", "wrong-type", "storage.path", 5),
    ("seed: -007\n", "wrong-type", "seed", 4),
    ("trainer: {epochs: 1:30}\n", "wrong-type", "trainer.epochs", 4),
    ("seed: 2024-01-01\n", "wrong-type", "seed", 4),
    ("seed: -1\n", "out-of-range", "seed", 4),
    ("trainer: {max_grad_norm: 0}\n", "out-of-range", "trainer.max_grad_norm", 4),
    ("optimizer: {name: sgd, momentum: 1.0}\n", "out-of-range", "optimizer.momentum", 4),
    ("scaling: {gpus_per_worker: 65}\n", "out-of-range", "scaling.gpus_per_worker", 4),
    ("storage: {path: ''}\n", "out-of-range", "storage.path", 4),
    (MODEL + "data:\n  name: synthetic\n  shape: [3, 0]\n", "out-of-range", "data.shape.1", 5),
    (
        MODEL + "data: {name: synthetic, shape: [3, 65536, 65536], num_samples: 100, num_validation_samples: 1}\n",
        "bad-value",
        "data.num_samples",
        3,
    ),
    ("optimizer: {name: sgd, lr: .nan}\n", "not-finite", "optimizer.lr", 4),
    ("optimizer: {name: sgd, lr: 1e999}\n", "not-finite", "optimizer.lr", 4),
    ("task:\n  path: 'own_nets:build'\n  args:\n    a: [1, .inf]\n", "not-finite", "task.args.a.1", 7),
    ('task: {path: "own_nets:build", args: {x: [{y: "\\uD800"}]}}\n', "wrong-type", "task.args.x.0.y", 4),
    ('storage: {path: "a\\0b"}\n', "wrong-type", "storage.path", 4),
    ("trainer: {activation_checkpointing: off}\n", "bad-choice", "trainer.activation_checkpointing", 4),
    ("trainer: {precision: bf16}\n", "bad-choice", "trainer.precision", 4),
    ("trainer: {precision: 32}\n", "bad-choice", "trainer.precision", 4),
    ("scaling: {use_gpu: atuo}\n", "bad-choice", "scaling.use_gpu", 4),
    ("parallel: {strategy: deepspeed}\n", "bad-choice", "parallel.strategy", 4),
    ("name: ../run\n" + OWN, "bad-text", "name", 1),
    ("name: a/b\n" + OWN, "bad-text", "name", 1),
    ("name: 12\n" + OWN, "wrong-type", "name", 1),
]
COMPONENTS = [
    (MODEL + "data: {name: CIFAR1O}\n", "unknown-component", "data.name", 3),
    ("optimizer: {name: sdg}\n", "unknown-component", "optimizer.name", 4),
    ("optimizer: {name: path}\n", "unknown-component", "optimizer.name", 4),
    ("optimizer: {name: 3}\n", "wrong-type", "optimizer.name", 4),
    ("optimizer: {lr: 0.1}\n", "no-component", "optimizer", 4),
    ("task: {name: classification, path: 'a:b'}\n", "two-components", "task", 4),
    ("optimizer: adamw\n", "wrong-type", "optimizer", 4),
    ("task: 'own_nets:T'\n", "wrong-type", "task", 4),
    ("task: {path: own_nets}\n", "import-path", "task.path", 4),
    ("task: {path: 3}\n", "import-path", "task.path", 4),
    ("task:\n  path: 'own_nest:T'\n", "import", "task.path", 5),
    ("task:\n  path: 'own_nets:biuld'\n", "import", "task.path", 5),
    ("task: {path: 'own_nets:build', args: [1]}\n", "wrong-type", "task.args", 4),
]


@pytest.mark.parametrize(("text", "code", "key", "line"), [*KEYS, *VALUES, *COMPONENTS])
def test_a_mistake_is_refused_at_its_place(
    text: str, code: str, key: str, line: int, refused: Callable[..., None]
) -> None:
    refused(text, code, key, line)


def test_all_mistakes_of_a_file_are_reported_at_once(write: Callable[..., Path]) -> None:
    file = write(
        "seed: -1\n"
        "trainer:\n  epoch: 3\n  precision: fp16\n  activation_checkpointing: off\n"
        "optimizer: {name: sdg}\n"
        "tracking: {uri: 5}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert [(problem.code, problem.key) for problem in caught.value.problems] == [
        ("out-of-range", "seed"),
        ("unknown-key", "trainer.epoch"),
        ("bad-choice", "trainer.precision"),
        ("bad-choice", "trainer.activation_checkpointing"),
        ("unknown-component", "optimizer.name"),
        ("wrong-type", "tracking.uri"),
    ]
    assert caught.value.exit_code == BAD_CONFIG
    lines = str(caught.value).splitlines()
    assert sum(not line.startswith("    hint: ") for line in lines) == 6
