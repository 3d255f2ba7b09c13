"""Whatever stands in a file or an override, the only error is ConfigError, and it can be printed."""

import copy
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.config.experiment import validate
from paceline.config.loading import dump_yaml
from paceline.config.overrides import parse_override
from paceline.config.source import read_text
from paceline.errors import ConfigError, Problem

GOOD = """\
name: run
seed: 1
model: {name: cnn}
data: {name: mnist5k, global_batch_size: 64, augmentation: {horizontal_flip: false}}
optimizer: &o {name: sgd, lr: 1e-3, lr_scaling: linear}
lr_scheduler: {name: cosine, warmup_epochs: 1}
trainer:
  epochs: 5
  precision: bf16-mixed
scaling: {num_workers: 2, use_gpu: auto}
task: {path: "os:getcwd", args: {a: [1, {b: .5}], <<: *o}}
"""
quick = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

yaml_like = st.text(st.sampled_from(list("ab1-:{}[],&*!|>'\"#?~%@<=. \n\t\\é\x00\ud800")), max_size=40)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["auto", "none", "path"])
)
keys = st.one_of(st.sampled_from(["name", "path", "args", "epochs", "lr", "data"]), st.text(max_size=6))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


def problems_of(action: Callable[[], object]) -> tuple[Problem, ...]:
    """What an action finds wrong; any other error than ConfigError goes on to fail the test."""
    try:
        action()
    except ConfigError as error:
        str(error).encode("utf-8", "backslashreplace")
        return error.problems
    return ()


def load(text: str) -> None:
    """Load a config from text; what is wrong has a place, and what is right can be written and read again."""

    def there_and_back() -> None:
        source = read_text(text, "run.yaml")
        saved = dump_yaml(validate(source.tree, source))
        assert read_text(saved, "again").tree == yaml.safe_load(saved)

    assert all(problem.place.startswith("run.yaml:") for problem in problems_of(there_and_back))


@quick
@given(st.one_of(st.text(max_size=60), yaml_like))
@example("a: &a [*a]")
@example("a: &a {<<: *a}")
@example("? {a: b}\n: c")
@example('a: "\\UFFFFFFFF"')
@example("!!int x")
@example("%YAML 9.9\n---\na: b")
def test_random_text(text: str) -> None:
    load(text)


@quick
@given(st.integers(0, len(GOOD)), st.integers(0, 12), yaml_like)
def test_random_edits_of_a_good_file(start: int, length: int, text: str) -> None:
    load(GOOD[:start] + text + GOOD[start + length :])


@quick
@given(st.data())
def test_random_values_in_a_good_tree(data: st.DataObject) -> None:
    tree: dict[str, Any] = copy.deepcopy(read_text(GOOD, "run.yaml").tree)
    validate(tree)
    section = data.draw(st.sampled_from([*tree, "checkpoint", "tracking", "storage", "parallel", "sweep"]))
    if isinstance(tree.get(section), dict) and data.draw(st.booleans()):
        key = data.draw(st.one_of(st.sampled_from(list(tree[section])), st.text(max_size=6)))
        tree[section][key] = data.draw(values)
    else:
        tree[section] = data.draw(values)
    problems_of(lambda: validate(tree))


@quick
@given(st.one_of(st.text(max_size=30), yaml_like, yaml_like.map("trainer.epochs={}".format)))
def test_random_overrides(text: str) -> None:
    problems_of(lambda: parse_override(text))
