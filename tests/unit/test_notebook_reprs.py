"""What configs, plans and results show in a notebook: small tables, escaped, and without secrets."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline import ExperimentConfig, MemoryPlan, RunResult, SweepResult, TuneupResult, load_config
from paceline.config.derived import derive
from paceline.sweeps.trial import Trial
from support.bench.study_fields import study_fields
from support.reports.page import parsed
from support.tuneup.findings import findings

SECRET = "hunter2canary"
ADDRESS = f"http://me:{SECRET}@host:5000"
HOSTILE = "<script>alert(1)</script>"
MOST_CHARACTERS = 8_000


def config() -> ExperimentConfig:
    """A config with a secret in each place that may hold one."""
    args = {
        "api_key": SECRET,
        "auth": {"login": SECRET},
        "source": f"s3://me:{SECRET}@bucket/x",
        "call": partial(print, password=SECRET),
        "long": "x" * 10_000,
        "title": HOSTILE,
    }
    return load_config(
        {
            "name": "x",
            "model": {"path": "collections:OrderedDict", "args": args},
            "data": {"name": "synthetic", "global_batch_size": 8},
            "tracking": {"uri": ADDRESS},
        }
    )


def plan() -> MemoryPlan:
    sizes = dict.fromkeys(("parameters", "trainable_parameters", "flops_per_sample", "forward_flops_per_sample"), 1)
    derived = derive(config(), None)
    fixed: dict[str, Any] = {"micro_batch_size": 8, "device": "cpu", "device_memory_bytes": None, "fits": None}
    notes = (HOSTILE, f"password={SECRET}")
    found = {"peak_memory_bytes": 1, "memory": {"weights": 1}, "grid": (), "cheapest": None}
    return MemoryPlan(**sizes, **fixed, **found, derived=derived, notes=notes)  # type: ignore[arg-type]


def run() -> RunResult:
    fixed: dict[str, Any] = {"run_id": "r", "name": HOSTILE, "status": "finished", "steps": 1, "weights_sha256": ""}
    measured: dict[str, Any] = {"samples_per_second": 1.0, "peak_memory_bytes": 1, "wall_seconds": 1.0}
    links = {"mlflow_url": ADDRESS, "review_url": f"{ADDRESS}/#/review"}
    return RunResult(
        **fixed, **measured, **links, metrics={"val/loss": 0.1}, checkpoint=ADDRESS, config=config(), folder=Path()
    )


def sweep() -> SweepResult:
    trials = (
        Trial("0000", {"model.args.title": HOSTILE}, "finished", metrics={"val/loss": 0.1}),
        Trial("0001", {"model.args.source": ADDRESS}, "finished", metrics={"val/loss": 0.2}),
        Trial("0002", {"model.args.title": "x"}, "failed", reason=f"no answer from {ADDRESS}"),
    )
    return SweepResult(
        sweep_id="s",
        name=HOSTILE,
        status="finished",
        trials=trials,
        objectives=(("val/loss", "min"),),
        config=config(),
        folder=Path(),
        best_config_path="best.yaml",
        wall_seconds=1.0,
        mlflow_url=ADDRESS,
    )


def tuneup() -> TuneupResult:
    found = findings()
    failed = replace(found.techniques[-1], name=HOSTILE, reason=f"no answer from {ADDRESS}")
    found = replace(found, techniques=(*found.techniques, failed), notes=(HOSTILE, f"password={SECRET}"))
    fields = study_fields(config(), Path(), recommended="recommended.yaml", report="report.html", url=ADDRESS)
    return TuneupResult(tuneup_id="t", findings=found, **fields)


def rows_of(html: str) -> dict[str, str]:
    """The rows with one heading and one cell."""
    rows = parsed(html).all("tr")
    return {row.one("th").text: row.cells[0] for row in rows if len(row.all("th")) == len(row.cells) == 1}


@pytest.mark.parametrize("shown", [config, plan, run, sweep, tuneup], ids=lambda shown: shown.__name__)
def test_a_notebook_shows_a_small_table_without_secrets(shown: Any) -> None:
    html = shown()._repr_html_()
    page = parsed(html)
    assert page.all("table")
    assert not page.all("script")
    assert "&lt;script&gt;" in html
    assert SECRET not in html
    assert len(html) < MOST_CHARACTERS


@pytest.mark.parametrize("shown", [config, plan, run, sweep, tuneup], ids=lambda shown: shown.__name__)
def test_the_text_has_no_secrets(shown: Any) -> None:
    assert SECRET not in repr(shown())
    assert SECRET not in str(shown())


def test_a_config_shows_what_was_set() -> None:
    rows = rows_of(config()._repr_html_())
    assert rows["data.global_batch_size"] == "8"
    assert (rows["model.args.api_key"], rows["model.args.auth.login"]) == ("***", "***")
    assert rows["tracking.uri"] == "http://***@host:5000"
    assert "seed" not in rows


def test_the_sections_of_a_config_have_no_secrets_in_their_text() -> None:
    shown = config()
    assert SECRET not in f"{shown.tracking!r} {shown.model!s}"
    assert "name='synthetic'" in repr(shown.data)


def test_a_tuneup_shows_its_recommendation() -> None:
    rows = rows_of(tuneup()._repr_html_())
    assert 'data.cache="memory"' in rows["recommended"]
    assert rows["config"] == "recommended.yaml"
