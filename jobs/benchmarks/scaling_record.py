"""What scaling.py leaves behind: one run in MLflow, by way of a journal as every run has."""

import json
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling_figures import PICTURE, picture

from paceline.cluster.experiment import close_seconds_of, require_shared_places, unsent_text
from paceline.cluster.listener import SilentListener
from paceline.cluster.preflight import storage_folder, writable
from paceline.cluster.session import on_cluster
from paceline.config.loading import dump_yaml
from paceline.tracking import metrics
from paceline.tracking.points import Point
from paceline.tracking.provenance import command_line, provenance
from paceline.tracking.record import RunRecord, flatten
from paceline.tracking.recorder import Recorder
from paceline.tracking.redact import learn, secrets_of, shareable
from paceline.tracking.store import start_creating, tracking_uri

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

TABLE, FIGURES = "scaling.txt", "scaling.json"


class Record:
    """Checks where the result is to go before anything is measured, and takes it in the end.

    Raises:
        ConfigError: on a cluster, a place is not named that all nodes reach.
        EnvironmentFault: MLflow does not answer, or the folder cannot be written to.
    """

    def __init__(self, config: "ExperimentConfig", address: str | None) -> None:
        learn(secrets_of(config))
        if on_cluster(address):
            require_shared_places(config)
        self._config = config
        self._uri = tracking_uri(config.tracking, Path.cwd())
        self._close_seconds = close_seconds_of(self._uri, config.tracking.offline, SilentListener())
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self.folder = storage_folder(config) / f"{config.name}-scaling" / run_id
        with writable(self.folder):
            self.folder.mkdir(parents=True, mode=0o700)
        start_creating(self._uri)

    def write(self, found: dict[str, Any], table: str, figures: str) -> str:
        """Record all of it; returns a line that says where it is."""
        config = self._config
        origin = provenance(command_line(sys.argv), git_diff=config.tracking.git_diff)
        stamp = next(part["stamp"] for part in found.values())
        record = RunRecord(
            run_id=self.folder.name,
            name=f"{config.name}-scaling",
            uri=self._uri,
            experiment=config.tracking.experiment or config.name,
            params=flatten(shareable(config).model_dump(mode="json", exclude={"sweep"})),
            tags={**origin.tags, metrics.KIND: "benchmark", metrics.SPEED_STAMP: json.dumps(stamp)},
            artifacts={"config.yaml": dump_yaml(shareable(config)), TABLE: table, FIGURES: figures, **origin.artifacts},
            secrets=secrets_of(config),
            picture=False,
        )
        recorder = Recorder(self.folder / "tracking", record)
        recorder.append(points_of(found, time.time_ns() // 1_000_000))
        if "efficiency" in found:
            title = f"{config.name} on {stamp.get('device', 'an unknown device')}"
            recorder.add_artifact(PICTURE, picture(found["efficiency"]["rows"], title)._repr_png_())
        report = recorder.close("FINISHED", timeout_seconds=self._close_seconds, note=f"```\n{table}\n```")
        if report.error:
            return unsent_text(report.error, self.folder)
        return f"recorded as {report.url}"


def points_of(found: dict[str, Any], now_ms: int) -> list[Point]:
    """The figures as metrics: those of scaling at the number of workers as their step, ratios at step 0."""
    values: list[tuple[str, float, int]] = []
    for row in found.get("efficiency", {}).get("rows", ()):
        values += [
            (f"{row.mode}/samples_per_second", row.samples_per_second.value, row.workers),
            (f"{row.mode}/step_seconds", row.step_seconds, row.workers),
            (f"{row.mode}/efficiency", row.efficiency.value, row.workers),
            (f"{row.mode}/efficiency_low", row.efficiency.low, row.workers),
            (f"{row.mode}/efficiency_high", row.efficiency.high, row.workers),
        ]
    for each in found.get("raw", {}).get("comparisons", ()):
        name = each.arm.lower().replace(" ", "_")
        values += [
            (f"raw/{name}/step_seconds", each.step_seconds, 0),
            (f"raw/{name}/ratio", each.by_clock.value, 0),
            (f"raw/{name}/ratio_low", each.by_clock.low, 0),
            (f"raw/{name}/ratio_high", each.by_clock.high, 0),
        ]
    return [Point(key, value, step, now_ms) for key, value, step in values]
