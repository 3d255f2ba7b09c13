"""The pictures of a sweep as files, and the importance of its axes. Slow for a unit test: it imports scikit-learn."""

import math
import random
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.results.importance import importances
from paceline.sweeps.results.pictures import HEATMAP, IMPORTANCE, PARETO, PICTURES, SHARES, Drawing, pictures_of
from paceline.sweeps.results.record import note_of
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from support.sweeps.configs import sweep_config
from support.sweeps.launches import launch_of
from support.sweeps.pictures import ACCURACY, BATCH, GRID, LR, RULE, grid_trials, trial


def test_pictures_are_drawn_aside_and_named_in_the_note(tmp_path: Path) -> None:
    trials, histories = grid_trials()
    launch = launch_of(GRID, tmp_path)
    for name, own in histories.items():
        journal = Journal(launch.folder.trials / name / "tracking" / JOURNAL_FILE)
        journal.append([("point", point.to_json()) for point in own])
        journal.close()

    def draw() -> dict[str, bytes]:
        drawing = Drawing()
        drawing.prepare(GRID, trials[:0])
        drawing.start(launch.folder.path, GRID, trials)
        return drawing.finish(120)

    drawn = draw()
    assert set(drawn) == {*PICTURES, SHARES}
    for data in map(drawn.__getitem__, PICTURES):
        with Image.open(BytesIO(data)) as image:
            assert image.format == "PNG"
            assert 300 < image.width < 1300
            assert 150 < image.height < 900
            assert len(set(image.convert("RGB").resize((64, 64)).getdata())) > 20
    assert draw() == drawn  # the same trials make the same files

    def links(run_id: str) -> list[str]:
        note = note_of(launch, trials, "finished", "", None, PICTURES)
        assert all(name in note for name in PICTURES)
        return re.findall(rf"get-artifact\?path=([^&]*)&run_uuid={run_id}\b", note)

    assert links(".*") == []  # MLflow's id of the run is not known
    launch.folder.tracking.mkdir(exist_ok=True)
    (launch.folder.tracking / "uploaded.json").write_text('{"run_id": "abc123", "experiment_id": "1"}')
    assert sorted(links("abc123")) == sorted(PICTURES)
    launch.claimed.release()


def test_formulas_and_odd_characters_are_drawn() -> None:
    odd = "$\\frac{<script>日本\n"
    trials, histories = grid_trials()
    trials = [
        replace(
            each,
            params={f"model.{odd}": each.params[BATCH], RULE: odd + each.params[RULE]},
            metrics={odd: each.metrics["val/accuracy"]},
        )
        for each in trials
    ]
    own = {name: [MetricPoint(odd, 0.1 * n, n, n) for n in range(1, 5)] for name in histories}
    assert set(pictures_of(GRID, trials, [(odd, "max")], own)) == {*PICTURES, SHARES}


def test_most_important_axis_comes_first() -> None:
    rng = random.Random(0)
    space = {LR: {"loguniform": [1e-4, 1]}, BATCH: [32, 64], RULE: ["none", "linear"]}
    config = sweep_config(space, search="random", num_samples=40)
    section, trials = section_of(config), []
    for number in range(40):
        lr = 10 ** rng.uniform(-4, 0)
        params = {LR: lr, BATCH: rng.choice([32, 64]), RULE: rng.choice(["none", "linear"])}
        value = 0.9 - 0.05 * (math.log10(lr) + 2) ** 2 - 0.05 * (params[RULE] == "none")
        trials.append(trial(number, params, value))
    shares = importances(section, trials, ACCURACY[0])
    assert list(shares) == [LR, RULE, BATCH]
    assert shares[LR] > 0.6
    assert sum(shares.values()) == pytest.approx(1)
    wild = [*trials, trial(99, {LR: 0.5, BATCH: 32, RULE: "none"}, -1e9)]
    assert next(iter(importances(section, wild, ACCURACY[0]))) == LR
    equal = [trial(n, each.params, 0.5) for n, each in enumerate(trials)]
    one_axis = [trial(n, {LR: n}, n / 50) for n in range(20)]
    assert [importances(section, few, ACCURACY[0]) for few in (trials[:5], equal, one_axis)] == [{}] * 3
    assert set(importances(section_of(GRID), grid_trials()[0], ACCURACY[0])) == {BATCH, RULE}  # not the seed
    ranged = [replace(each, params={axis: each.params[axis] for axis in (LR, RULE)}) for each in trials]
    failed = replace(ranged[0], id="0040", state="failed")
    # with dots on a log scale
    assert set(pictures_of(config, [*ranged, failed], ACCURACY, {})) == {PARETO, HEATMAP, IMPORTANCE, SHARES}
