"""The first config file of a project: what `paceline init` writes."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from paceline.config.base import Component
from paceline.config.definitions import dataset_class_problem, is_dataset_class
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import LIGHTNING_TASK, Called, is_path
from paceline.config.lightning import has_own_optimizer, is_lightning_module
from paceline.config.loading import load_config
from paceline.config.schema import json_schema
from paceline.config.source import read_text, read_value
from paceline.config.yaml_rules import Dumper
from paceline.errors import ConfigError, Problem
from paceline.places import place_of

SCHEMA_FILE = "paceline.schema.json"
"""JSON Schema beside the config, with which editors complete and check it."""

TEMPLATE = """\
# yaml-language-server: $schema={schema}
# Train: paceline train {file}      Check only: paceline train {file} --dry-run
# All fields, with their documentation: paceline schema
name: {name}

# A function or class that returns a torch.nn.Module. `args` are its keyword arguments.
model: {model}

# A function that returns (train, validation) data sets, or a mapping with train, validation, test, collate_fn, sampler.
# global_batch_size = micro_batch_size x trainer.gradient_accumulation_steps x workers
data:
{data}
  global_batch_size: 64
  # micro_batch_size: max           # the largest that fits into memory
  # num_workers: 2                  # loader processes of each worker

# classification, multilabel, regression, segmentation, language_modeling, model_loss, or path: "package:Task"
# model_loss is for models that return their own loss, such as those of Hugging Face. Its batches are mappings.
task: {{name: classification}}

optimizer: {{name: adamw, lr: 0.001}}
# lr_scheduler: {{name: cosine, warmup_epochs: 1}}

trainer:
  epochs: 5
  # precision: bf16-mixed
  # compile: default
  # activation_checkpointing: full

# callbacks: [{{name: early_stopping, monitor: val/loss, patience: 3}}, {{name: ema, decay: 0.999}}]
# checkpoint: {{monitor: val/loss, keep_best: 1}}

# 0 trains in this process. 2 or more start that many workers on Ray, a GPU each where there are enough.
scaling: {{num_workers: 0}}

# paceline sweep {file}
# sweep: {{space: {{optimizer.lr: [0.0003, 0.001, 0.003]}}, metric: val/loss}}
"""


TASK = "task: {name: classification}"
OPTIMIZER = "optimizer: {name: adamw, lr: 0.001}"
SWEPT = "optimizer.lr: [0.0003, 0.001, 0.003]"
"""Parts of the template that another task replaces."""
OWN = "configure_optimizers: true"


def write_first_file(output: Path, chosen: Mapping[str, str], args: Mapping[str, Sequence[str]]) -> Path:
    """Write a first config file and its JSON Schema, once the config is known to be valid.

    Args:
        output: the file to write.
        chosen: for `model` and `data`, an import path `package:name` or the name of a shipped component. Without one
            for `task`, it is that of the model's library, else classification.
        args: for each of them, arguments of the form `name=value`.

    Returns:
        The absolute path of the file.

    Raises:
        ConfigError: the file exists, or the config would be wrong.
        OSError: it cannot be written.
    """
    file = place_of(output)
    if file.exists():
        hint = "name another file with --output, or remove this one"
        raise ConfigError([Problem("file-exists", "the file exists, and nothing is overwritten", "", str(file), hint)])
    sections = {section: _section(section, value, args.get(section, ())) for section, value in chosen.items()}
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", file.stem)
    text = first_file(name, file.name, sections["model"], sections["data"])
    if "task" in sections:
        text = text.replace(TASK, f"task: {_flow(sections['task'])}")
    config = _check(text, file)
    task = None if "task" in sections else _task_of(config.model)
    if task is not None:
        text = text.replace(TASK, f"task: {task}")
        if OWN in task:
            text = text.replace(OPTIMIZER, f"# {OPTIMIZER}  # with configure_optimizers: false")
            text = text.replace(SWEPT, "data.global_batch_size: [32, 64, 128]")
        _check(text, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / SCHEMA_FILE).write_text(json.dumps(json_schema(), indent=1))
    file.write_text(text)
    return file


def _section(section: str, value: str, args: Sequence[str]) -> dict[str, Any]:
    """The fields of a component."""
    given = {}
    for text in args:
        name, equals, number = text.partition("=")
        if not equals or not name.isidentifier():
            hint = f"write --{section}-arg NAME=VALUE"
            raise ConfigError([Problem("bad-override", f"{text!r} is not of that form", f"{section}.args", hint=hint)])
        given[name] = read_value(number, f"--{section}-arg {text}")
    if not is_path(value):
        return {"name": value, **given}
    return {"path": value, "args": given} if given else {"path": value}


def _task_of(model: Component) -> str | None:
    """The task of a LightningModule or a Hugging Face model, None for other models.

    The model's module is imported, as training would. A function counts by the class that it is annotated to return.
    """
    if not isinstance(model, Called):
        return None
    try:
        with redirect_stdout(io.StringIO()):
            target = model.load()
    except (Exception, SystemExit):  # a package that only the cluster has, say; training reports it
        return None
    made = target if isinstance(target, type) else getattr(target, "__annotations__", {}).get("return")
    if not isinstance(made, type):
        return None
    if is_lightning_module(made):
        return lightning_task(made)
    return "{name: model_loss}" if any(base.__module__.startswith("transformers.") for base in made.__mro__) else None


def lightning_task(module: type) -> str:
    """Return the task for a LightningModule. If the module has its own optimizer, it says which one trains."""
    plain = f'path: "{LIGHTNING_TASK}"'
    if not has_own_optimizer(module):
        return f"{{{plain}}}"
    return f"{{{plain}, args: {{{OWN}}}}}  # false: the section optimizer, not the module's own"


def _check(text: str, file: Path) -> ExperimentConfig:
    """Load the config as it will stand in the file, with the file's folder importable."""
    try:
        config = load_config(read_text(text, str(file)).tree, folder=file.parent)
    except ConfigError as error:
        raise ConfigError([_with_flag(problem) for problem in error.problems]) from None
    path = getattr(config.data, "path", None)
    if isinstance(path, str) and is_dataset_class(path):
        raise ConfigError([replace(dataset_class_problem(path), key="data.path")])
    return config


def _with_flag(problem: Problem) -> Problem:
    """A problem of an argument, with the flag that gives it."""
    section, _, argument = problem.key.partition(".args.")
    if problem.code == "missing-key" and argument:
        return replace(problem, place="", hint=f"add --{section}-arg {argument}=VALUE")
    return replace(problem, place="")


def first_file(name: str, file: str, model: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return a commented config.

    Args:
        file: name of the file that it is written to.
        model: fields of the section `model`; likewise `data`, without the batch size.
    """
    lines = "\n".join(f"  {key}: {_flow(value)}" for key, value in data.items())
    return TEMPLATE.format(schema=SCHEMA_FILE, name=_flow(name), file=file, model=_flow(dict(model)), data=lines)


def _flow(value: Any) -> str:
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("...").strip()
