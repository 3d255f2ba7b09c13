"""Components that cannot be told or found, and fields that disagree; all mistakes of a file at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.loading import load_config
from paceline.errors import BAD_CONFIG, ConfigError

Write = Callable[..., Path]
Refused = Callable[..., None]

MODEL = "name: x\nmodel: {path: 'own_nets:build'}\n"
CNN = "name: x\nmodel: {name: cnn}\n"
COMPONENTS = [
    (MODEL + "data: {name: CIFAR1O}\n", "unknown-component", "data.name", 3),
    (
        MODEL + "data:\n  name: synthetic\n  shape: [3, 0]\n",
        "out-of-range",
        "data.shape.1",
        5,
    ),
    (
        MODEL + "data:\n  name: mnist5k\n  augmentation: {horizontal_flop: true}\n",
        "unknown-key",
        "data.augmentation.horizontal_flop",
        5,
    ),
    (
        MODEL + "data: {name: mnist5k, global_batch_size: 2147483648}\n",
        "out-of-range",
        "data.global_batch_size",
        3,
    ),
    (
        MODEL + "data: {name: mnist5k, prefetch_factor: 1025}\n",
        "out-of-range",
        "data.prefetch_factor",
        3,
    ),
    (
        MODEL + "data: {name: image_folder, root: x, image_size: 16385}\n",
        "out-of-range",
        "data.image_size",
        3,
    ),
    (
        MODEL + "data:\n  name: synthetic\n  shape: [3, 65536, 65536]\n"
        "  num_samples: 100\n  num_validation_samples: 1\n",
        "bad-value",
        "data.num_samples",
        6,
    ),
    (
        "name: x\nmodel: {name: mlp, hidden: [100000000]}\ndata: {path: 'own_nets:data'}\n",
        "out-of-range",
        "model.hidden.0",
        2,
    ),
    (MODEL + "data: {name: image_folder}\n", "missing-key", "data.root", 3),
    ("optimizer: {name: sdg}\n", "unknown-component", "optimizer.name", 4),
    ("lr_scheduler:\n  name: cosin\n", "unknown-component", "lr_scheduler.name", 5),
    ("optimizer: {name: path}\n", "unknown-component", "optimizer.name", 4),
    ("optimizer: {name: 3}\n", "wrong-type", "optimizer.name", 4),
    ("optimizer: {lr: 0.1}\n", "no-component", "optimizer", 4),
    ("task: {name: classification, path: 'a:b'}\n", "two-components", "task", 4),
    ("optimizer: adamw\n", "wrong-type", "optimizer", 4),
    ("task: 'own_nets:T'\n", "wrong-type", "task", 4),
    ("task: {path: own_nets}\n", "import-path", "task.path", 4),
    ("task: {path: 3}\n", "import-path", "task.path", 4),
    ("task:\n  path: 'own_nest:T'\n", "import", "task.path", 5),
    ("task: {path: 'json.codec:T'}\n", "import", "task.path", 4),
    ("task:\n  path: 'own_nets:biuld'\n", "import", "task.path", 5),
    (
        MODEL + 'data: {name: text_file, file: "a\\0b"}\n',
        "wrong-type",
        "data.file",
        3,
    ),
    ("task: {path: 'own_nets:build', args: [1]}\n", "wrong-type", "task.args", 4),
]

DATA = "name: run\nmodel: {path: 'own_nets:build'}\ndata:\n  path: 'own_nets:data'\n"
DISAGREEMENTS = [
    ("trainer: {precision: 16-mixed}\nscaling: {use_gpu: false}\n", "fp16-on-cpu", "trainer.precision", 4),
    ("trainer:\n  deterministic: true\n  cudnn_benchmark: true\n", "contradiction", "trainer.cudnn_benchmark", 6),
    ("trainer:\n  activation_checkpointing: budget\n", "contradiction", "trainer.activation_checkpointing", 5),
    ("trainer:\n  deterministic: true\n  compile: max-autotune\n", "contradiction", "trainer.compile", 6),
    (
        "lr_scheduler: {name: cosine, warmup_epochs: 1, warmup_steps: 5}\n",
        "contradiction",
        "lr_scheduler.warmup_epochs",
        4,
    ),
    ("optimizer:\n  name: sgd\n  momentum: 0\n  nesterov: true\n", "contradiction", "optimizer.nesterov", 7),
    ("scaling:\n  use_gpu: false\n  gpus_per_worker: 0.5\n", "contradiction", "scaling.gpus_per_worker", 6),
    (
        "name: x\nmodel: {name: gpt, context_length: 32}\ndata: {name: text_file, context_length: 64}\n",
        "contradiction",
        "data.context_length",
        3,
    ),
    (
        CNN + "data:\n  name: image_folder\n  root: x\n  cache: memory\n",
        "contradiction",
        "data.cache",
        6,
    ),
    (
        CNN + "data:\n  name: Food101\n  cache: device\n  augmentation: {random_resized_crop: false}\n",
        "contradiction",
        "data.cache",
        5,
    ),
    ("checkpoint: {every_n_steps: 5, every_n_epochs: 1}\n", "contradiction", "checkpoint.every_n_epochs", 4),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 0, use_gpu: false}\n",
        "contradiction",
        "parallel.strategy",
        4,
    ),
    ("parallel: {strategy: data_parallel}\nscaling: {num_workers: 2}\n", "contradiction", "scaling.num_workers", 5),
    ("parallel: {strategy: data_parallel}\n", "contradiction", "parallel.strategy", 4),
    (
        "parallel: {strategy: data_parallel}\nscaling: {gpus_per_worker: 2.5}\n",
        "contradiction",
        "scaling.gpus_per_worker",
        5,
    ),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 0}\ntrainer: {activation_checkpointing: full}\n",
        "contradiction",
        "trainer.activation_checkpointing",
        6,
    ),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 0}\ntrainer: {compile: default}\n",
        "contradiction",
        "trainer.compile",
        6,
    ),
    ("scaling: {gpus_per_worker: 2}\n", "contradiction", "scaling.gpus_per_worker", 4),
    (DATA + "  global_batch_size: 255\nscaling: {num_workers: 2}\n", "batch", "data.global_batch_size", 5),
    (DATA + "  global_batch_size: 100\n  micro_batch_size: 32\n", "batch", "data.global_batch_size", 5),
    (DATA + "  global_batch_size: 8\n  micro_batch_size: 32\n", "batch", "data.global_batch_size", 5),
    (
        DATA + "  global_batch_size: 64\n  micro_batch_size: 16\ntrainer: {gradient_accumulation_steps: 2}\n",
        "batch",
        "data.global_batch_size",
        5,
    ),
    (DATA + "  micro_batch_size: 2147483647\nscaling: {num_workers: 2}\n", "batch", "data.micro_batch_size", 5),
]


@pytest.mark.parametrize(("text", "code", "key", "line"), COMPONENTS)
def test_components_that_cannot_be_told(text: str, code: str, key: str, line: int, refused: Refused) -> None:
    refused(text, code, key, line)


@pytest.mark.parametrize(("text", "code", "key", "line"), DISAGREEMENTS)
def test_fields_that_disagree(text: str, code: str, key: str, line: int, refused: Refused) -> None:
    refused(text, code, key, line)


def test_all_mistakes_of_a_file_are_reported_at_once(write: Write) -> None:
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
    assert str(caught.value).count("\n") == 5


def test_disagreements_are_reported_beside_mistakes(write: Write) -> None:
    trainer = "trainer: {cudnn_benchmark: true, deterministic: true}\n"
    optimizer = "optimizer: {name: sgd, momentum: 0, nesterov: true}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(f"seed: -1\n{trainer}{optimizer}"))

    assert [problem.key for problem in caught.value.problems] == [
        "seed",
        "trainer.cudnn_benchmark",
        "optimizer.nesterov",
    ]


def test_a_disagreement_that_rests_on_a_mistake_is_not_reported(write: Write) -> None:
    body = "trainer: {gradient_accumulation_steps: 4}\nscaling: {num_workers: two}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(body, head=f"{DATA}  global_batch_size: 64\n  micro_batch_size: 16\n"))

    assert [problem.key for problem in caught.value.problems] == ["scaling.num_workers"]
