"""Components that cannot be told or found, and fields that disagree; all mistakes of a file at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.loading import load_config
from paceline.errors import BAD_CONFIG, ConfigError

Write = Callable[..., Path]
Refused = Callable[..., None]

COMPONENTS = [
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata: {name: CIFAR1O}\n",
        "unknown-component",
        "data.name",
        3,
        "did you mean CIFAR10? ... nearest of",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata:\n  name: synthetic\n  shape: [3, 0]\n",
        "out-of-range",
        "data.shape.1",
        5,
        "at least 1, not 0",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata:\n  name: mnist5k\n  augmentation: {horizontal_flop: true}\n",
        "unknown-key",
        "data.augmentation.horizontal_flop",
        5,
        "did you mean data.augmentation.horizontal_flip?",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata: {name: mnist5k, global_batch_size: 2147483648}\n",
        "out-of-range",
        "data.global_batch_size",
        3,
        "at most 2147483647",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata: {name: mnist5k, prefetch_factor: 1025}\n",
        "out-of-range",
        "data.prefetch_factor",
        3,
        "at most 1024",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata: {name: image_folder, root: x, image_size: 16385}\n",
        "out-of-range",
        "data.image_size",
        3,
        "at most 16384",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata:\n  name: synthetic\n  shape: [3, 65536, 65536]\n"
        "  num_samples: 100\n  num_validation_samples: 1\n",
        "bad-value",
        "data.num_samples",
        6,
        "100 times the shape [3, 65536, 65536] takes 4.7 TiB ... 1 TiB",
    ),
    (
        "name: x\nmodel: {name: mlp, hidden: [100000000]}\ndata: {path: 'own_nets:data'}\n",
        "out-of-range",
        "model.hidden.0",
        2,
        "at most 10000000",
    ),
    ("name: x\nmodel: {path: 'own_nets:build'}\ndata: {name: image_folder}\n", "missing-key", "data.root", 3, "Folder"),
    ("optimizer: {name: sdg}\n", "unknown-component", "optimizer.name", 4, "did you mean sgd? ... adamw"),
    ("lr_scheduler:\n  name: cosin\n", "unknown-component", "lr_scheduler.name", 5, "cosine ... linear ... step"),
    ("optimizer: {name: path}\n", "unknown-component", "optimizer.name", 4, "adamw, lamb ... sgd"),
    ("optimizer: {name: 3}\n", "wrong-type", "optimizer.name", 4, "text, not 3"),
    ("optimizer: {lr: 0.1}\n", "no-component", "optimizer", 4, "neither ... adamw, lamb ... sgd ... path"),
    ("task: {name: classification, path: 'a:b'}\n", "two-components", "task", 4, "both"),
    ("optimizer: adamw\n", "wrong-type", "optimizer", 4, "write optimizer: {name: adamw}"),
    ("task: 'own_nets:T'\n", "wrong-type", "task", 4, "write task: {path: 'own_nets:T'}"),
    ("task: {path: own_nets}\n", "import-path", "task.path", 4, "module:function"),
    ("task: {path: 3}\n", "import-path", "task.path", 4, "my_pkg.nets:build"),
    ("task:\n  path: 'own_nest:T'\n", "import", "task.path", 5, "no module named 'own_nest' ... looked in"),
    ("task: {path: 'json.codec:T'}\n", "import", "task.path", 4, "json.codec"),
    (
        "task:\n  path: 'own_nets:biuld'\n",
        "import",
        "task.path",
        5,
        "module 'own_nets' has no 'biuld' ... did you mean build?",
    ),
    (
        "name: x\nmodel: {path: 'own_nets:build'}\ndata: {name: text_file, file: \"a\\0b\"}\n",
        "wrong-type",
        "data.file",
        3,
        "valid characters",
    ),
    ("task: {path: 'own_nets:build', args: [1]}\n", "wrong-type", "task.args", 4, "mapping"),
]

DATA = "name: run\nmodel: {path: 'own_nets:build'}\ndata:\n  path: 'own_nets:data'\n"
DISAGREEMENTS = [
    (
        "trainer: {precision: 16-mixed}\nscaling: {use_gpu: false}\n",
        "fp16-on-cpu",
        "trainer.precision",
        4,
        "CUDA ... bf16-mixed",
    ),
    (
        "trainer:\n  deterministic: true\n  cudnn_benchmark: true\n",
        "contradiction",
        "trainer.cudnn_benchmark",
        6,
        "false",
    ),
    (
        "trainer:\n  activation_checkpointing: budget\n",
        "contradiction",
        "trainer.activation_checkpointing",
        5,
        "compile: default",
    ),
    (
        "trainer:\n  deterministic: true\n  compile: max-autotune\n",
        "contradiction",
        "trainer.compile",
        6,
        "by their speed ... compile: default",
    ),
    (
        "lr_scheduler: {name: cosine, warmup_epochs: 1, warmup_steps: 5}\n",
        "contradiction",
        "lr_scheduler.warmup_epochs",
        4,
        "2 times ... keep one",
    ),
    (
        "optimizer:\n  name: sgd\n  momentum: 0\n  nesterov: true\n",
        "contradiction",
        "optimizer.nesterov",
        7,
        "momentum: 0.9",
    ),
    ("scaling:\n  use_gpu: false\n  gpus_per_worker: 0.5\n", "contradiction", "scaling.gpus_per_worker", 6, "auto"),
    (
        "name: x\nmodel: {name: gpt, context_length: 32}\ndata: {name: text_file, context_length: 64}\n",
        "contradiction",
        "data.context_length",
        3,
        "64 tokens ... 32",
    ),
    (
        "name: x\nmodel: {name: cnn}\ndata:\n  name: image_folder\n  root: x\n  cache: memory\n",
        "contradiction",
        "data.cache",
        6,
        "random_resized_crop and horizontal_flip ... cache: none",
    ),
    (
        "name: x\nmodel: {name: cnn}\ndata:\n  name: Food101\n  cache: device\n"
        "  augmentation: {random_resized_crop: false}\n",
        "contradiction",
        "data.cache",
        5,
        "horizontal_flip: false",
    ),
    ("checkpoint: {every_n_steps: 5, every_n_epochs: 1}\n", "contradiction", "checkpoint.every_n_epochs", 4, "keep"),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 0, use_gpu: false}\n",
        "contradiction",
        "parallel.strategy",
        4,
        "at least 2 GPUs ... ddp",
    ),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 2}\n",
        "contradiction",
        "scaling.num_workers",
        5,
        "not 2 workers ... num_workers: 1",
    ),
    (
        "parallel: {strategy: data_parallel}\n",
        "contradiction",
        "parallel.strategy",
        4,
        "at least 2 GPUs, not auto ... gpus_per_worker: 2 or more, or num_workers: 0",
    ),
    (
        "parallel: {strategy: data_parallel}\nscaling: {gpus_per_worker: 2.5}\n",
        "contradiction",
        "scaling.gpus_per_worker",
        5,
        "whole number ... not 2.5",
    ),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 0}\ntrainer: {activation_checkpointing: full}\n",
        "contradiction",
        "trainer.activation_checkpointing",
        6,
        "copies the model ... activation_checkpointing: none",
    ),
    (
        "parallel: {strategy: data_parallel}\nscaling: {num_workers: 0}\ntrainer: {compile: default}\n",
        "contradiction",
        "trainer.compile",
        6,
        "copies the model ... compile: none",
    ),
    (
        "scaling: {gpus_per_worker: 2}\n",
        "contradiction",
        "scaling.gpus_per_worker",
        4,
        "with parallel.strategy ddp a worker uses one GPU ... num_workers",
    ),
    (
        DATA + "  global_batch_size: 255\nscaling: {num_workers: 2}\n",
        "batch",
        "data.global_batch_size",
        5,
        "255 does not divide evenly by 2 workers (write 254 or 256)",
    ),
    (
        DATA + "  global_batch_size: 100\n  micro_batch_size: 32\n",
        "batch",
        "data.global_batch_size",
        5,
        "100 does not divide evenly by 32 micro (write 96 or 128, or change data.micro_batch_size)",
    ),
    (
        DATA + "  global_batch_size: 8\n  micro_batch_size: 32\n",
        "batch",
        "data.global_batch_size",
        5,
        "32",
    ),
    (
        DATA + "  global_batch_size: 64\n  micro_batch_size: 16\ntrainer: {gradient_accumulation_steps: 2}\n",
        "batch",
        "data.global_batch_size",
        5,
        "= 32, not 64 ... gradient_accumulation_steps: 4",
    ),
    (
        DATA + "  micro_batch_size: 2147483647\nscaling: {num_workers: 2}\n",
        "batch",
        "data.micro_batch_size",
        5,
        "2 workers = 4294967294, more than ... 2147483647 ... lower data.micro_batch_size",
    ),
]


@pytest.mark.parametrize(("text", "code", "key", "line", "words"), COMPONENTS)
def test_components_that_cannot_be_told(
    text: str, code: str, key: str, line: int, words: str, refused: Refused
) -> None:
    refused(text, code, key, line, words)


@pytest.mark.parametrize(("text", "code", "key", "line", "words"), DISAGREEMENTS)
def test_fields_that_disagree(text: str, code: str, key: str, line: int, words: str, refused: Refused) -> None:
    refused(text, code, key, line, words)


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
