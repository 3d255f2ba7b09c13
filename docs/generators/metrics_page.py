"""`metrics.md`: each metric and tag with its unit and its meaning, from `paceline.tracking.metrics`."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from generators.markdown import HEAD
from paceline.tracking import metrics

UNITS = {
    r"\bin joules\b": "J",
    r"\bin bytes\b": "bytes",
    r"\bin seconds\b|\bseconds?, by\b": "s",
    r"\bsamples a second\b": "samples/s",
    r"\b0 to 1\b": "0 to 1",
    r"\boptimizer steps left out\b|\bnumber of trials\b": "count",
    r"\bpasses over\b": "epochs",
}
"""Pattern of a docstring, and the unit that it means; the first match counts."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "val_metric": {"name": "NAME"},
    "axis_metric": {"name": "KEY"},
    "best_metric": {"name": "METRIC"},
    "speedup_metric": {"name": "TECHNIQUE"},
    "split_metric": {"part": "PART"},
    "recommended_split_metric": {"part": "PART"},
    "version_tag": {"package": "PACKAGE"},
    "rank_seconds": {"figure": metrics.RANK_FIGURES},
    "trials_metric": {"ending": metrics.TRIAL_COUNTS},
    "cost_metric": {"name": metrics.COSTS},
    "system_metric": {"name": metrics.HOST_METRICS},
    "gpu_metric": {"number": "N", "name": metrics.GPU_METRICS},
}
"""Arguments for a function that makes keys; with a tuple it is called once for each value."""


def page() -> str:
    """Return the whole page."""
    measured, tags = metrics_and_tags()
    return "\n".join(
        [
            "# Metrics and tags",
            "",
            HEAD,
            "",
            "All metrics and tags that Paceline writes into MLflow, by key. Where the column of the unit is empty, the",
            "text names the unit, or the metric has none.",
            "",
            "## Metrics",
            "",
            "| key | unit | meaning |",
            "|---|---|---|",
            *rows(measured),
            "",
            "## Tags",
            "",
            "| key | meaning |",
            "|---|---|",
            *(f"| {keys} | {text} |" for keys, text in tags),
            "",
        ]
    )


def rows(measured: list[tuple[str, str]]) -> Iterator[str]:
    """Return a row for each metric; "The same ..." has the unit of the metric before it."""
    unit = ""
    for keys, text in measured:
        unit = unit if text.startswith("The same ") else unit_of(keys, text)
        yield f"| {keys} | {unit} | {text} |"


def metrics_and_tags() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Keys and meaning of each, in the order of the module, which has the tags below a line of their own."""
    source = Path(metrics.__file__).read_text()
    first_tag = source[: source.index("# --- tags")].count("\n")
    found = list(declared(ast.parse(source)))
    return (
        [(keys, text) for line, keys, text in found if line <= first_tag],
        [(keys, text) for line, keys, text in found if line > first_tag],
    )


def declared(module: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, keys and text of each constant and each function that holds or makes keys."""
    for statement, after in zip(module.body, [*module.body[1:], None], strict=True):
        match statement, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                if keys := keys_of(getattr(metrics, name)):
                    yield statement.lineno, keys, plain(text)
            case ast.FunctionDef(name=name), _ if name in ARGUMENTS:
                yield statement.lineno, made_by(name), plain(text_of(name, ast.get_docstring(statement) or ""))


def keys_of(value: object) -> str:
    """Return the keys that a constant holds; empty for parts of keys."""
    if isinstance(value, dict):
        return code(list(value))
    return code([value]) if isinstance(value, str) and not value.endswith("/") else ""


def made_by(name: str) -> str:
    """The keys that a function makes."""
    (last, values), *_ = reversed(ARGUMENTS[name].items())
    given = {key: value for key, value in ARGUMENTS[name].items() if key != last}
    make = getattr(metrics, name)
    made = [make(**given, **{last: value}) for value in (values if isinstance(values, tuple) else (values,))]
    return code([metrics.system_metric(each) for each in made] if name == "gpu_metric" else made)


def text_of(name: str, docstring: str) -> str:
    """Return the documentation of the keys; of a function over a list of names, that of the list."""
    lists = {"system_metric": "HOST_METRICS", "gpu_metric": "GPU_METRICS", "cost_metric": "COSTS"}
    if name in lists:
        return docstrings()[lists[name]]
    return docstring.partition("\n\nArgs:")[0].partition("Args:")[0]


def docstrings() -> dict[str, str]:
    """Return the documentation of each constant."""
    body = ast.parse(Path(metrics.__file__).read_text()).body
    return {
        one.targets[0].id: text
        for one, after in pairwise(body)
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and (text := str(after.value.value))
    }


def unit_of(keys: str, text: str) -> str:
    """Return the unit that the text names; empty if it names several."""
    if keys.count("`") > 2 and "rank_seconds" not in keys and "trials/" not in keys:
        return ""
    return next((unit for words, unit in UNITS.items() if re.search(words, text.partition(". ")[0], re.IGNORECASE)), "")


def plain(text: str) -> str:
    """One line, fit for a table."""
    line = " ".join(text.split()).replace("|", "\\|").removeprefix("Key of ")
    return line[:1].upper() + line[1:]


def code(keys: list[str]) -> str:
    """Keys as code, one after the other."""
    return " ".join(f"`{key}`" for key in keys)
