"""The record of a run at its launch: name, params, tags and artifacts."""

import json
import os
from calendar import timegm
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import strptime
from typing import Any

from paceline.durable import write_durably
from paceline.errors import PacelineError
from paceline.redaction import learn, redact, redact_values, without_credentials
from paceline.tracking import metrics
from paceline.tracking.journal import JOURNAL_FILE, is_count
from paceline.tracking.metric_points import now_ms
from paceline.tracking.tracking_uri import ENVIRONMENT_VARIABLE

PARAM_LENGTH = 6000
"""MLflow's limit for the value of a param, in characters."""
TAG_LENGTH = 8000
"""MLflow's limit for the value of a tag, in characters."""
RECORD_FILE = "record.json"
ARTIFACT_FOLDER = "artifacts"


class DamagedRecord(PacelineError, ValueError):
    """A record's file is damaged; names the file, what is wrong with it, and the hint."""

    def __init__(self, file: Path, reason: str, field: str = "") -> None:
        hint = f"put the file back from a copy, or move {file.parent.parent} away"
        super().__init__(f"{file}: {reason}; {hint}", "damaged-record", file=file, field=field)


class _WrongField(ValueError):
    """A field of a saved record that is missing, not known or of another type."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"the field {field!r} {reason}")
        self.field = field


@dataclass(frozen=True)
class RunRecord:
    """A run's identity and all that does not change while it runs. Made on the driver."""

    run_id: str
    """Paceline's own identifier of the run, the same over all resumes."""
    name: str
    """MLflow shows it as the run's, with a part of `run_id`: the config's `name`. For a sweep's trial it stands alone,
    and is what the trial tries out."""
    uri: str = field(repr=False)
    """MLflow's address, see `tracking_uri`. May hold credentials: they are used, and never stored."""
    experiment: str
    """MLflow experiment that holds the run."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to value: the config and what was derived from it, see `flatten`. Kept as YAML would write them."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """See `metrics` for the keys, and `provenance` for most of the values."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Name to text, such as `config.yaml`."""
    start_time_ms: int = field(default_factory=now_ms)
    """Time of the launch, in milliseconds since 1970."""
    parent: str = ""
    """`run_id` of the run that MLflow shows this one under, in the same experiment; empty for none."""
    title: str = ""
    """The config's `name` where `name` is another one; empty where it is the same."""
    picture: bool = True
    """True if the loss curve is drawn at the end, which takes a quarter of a second of a core."""
    views: Mapping[str, str] = field(default_factory=dict)
    """Tags of the experiment with saved views, see `mlflow_views`; set when the run is opened."""
    folder: str = field(default="", compare=False)
    """Folder that the record was saved in, an absolute path: a copy elsewhere is not the run itself. Empty where that
    is not known."""

    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Values of the config that must not be shown, see `secrets_of`. Never stored: whoever opens the record
    learns them."""

    def __post_init__(self) -> None:
        learn(self.secrets)
        if not self.run_id or _has_quotes(self.run_id):
            raise ValueError(f"a run id must be text without quotes, not {self.run_id!r}")
        if _has_quotes(self.parent) or self.parent == self.run_id:
            raise ValueError(f"a parent must be another run's id, not {self.parent!r}")
        params = redact_values({redact(key): param_text(value) for key, value in self.params.items()})
        object.__setattr__(self, "params", {key: value[:PARAM_LENGTH] for key, value in params.items()})
        own = {metrics.RUN_ID: self.run_id, metrics.NAME: self.title or self.name}
        tags = {metrics.KIND: "run", **self.tags, **own}
        object.__setattr__(self, "tags", clean_tags(tags))
        object.__setattr__(self, "artifacts", {path: redact(text) for path, text in self.artifacts.items()})

    def save(self, folder: Path) -> None:
        """Write the record into the run's folder, without the address's credentials."""
        content = {**asdict(self), "uri": without_credentials(self.uri), "folder": str(folder.absolute())}
        del content["secrets"]
        write_durably(folder / RECORD_FILE, json.dumps(content, indent=1).encode())

    @classmethod
    def load(cls, folder: Path, uri: str | None = None) -> "RunRecord":
        """Read what `save` wrote; `uri` replaces the address, and is needed when that had credentials.

        Raises:
            OSError: there is no record in the folder, or it cannot be read.
            DamagedRecord: it is none.
        """
        file = folder / RECORD_FILE
        data = file.read_bytes()
        try:
            content = json.loads(data)
            _check(content)
            return cls(**{**content, "uri": uri or content["uri"]})
        except (ValueError, RecursionError) as error:
            reason = str(error) if type(error) in (ValueError, _WrongField) else "it is not JSON"
            raise DamagedRecord(file, reason, getattr(error, "field", "")) from None


def _check(content: object) -> None:
    """Check each field of a saved record.

    Raises:
        ValueError: one is not.
    """
    if not isinstance(content, dict):
        raise ValueError("it holds no fields")
    known = {each.name for each in fields(RunRecord)} - {"secrets"}
    if strange := sorted(content.keys() - known):
        raise _WrongField(strange[0], "is not known, it may be that of another version of Paceline")
    for name in ("run_id", "name", "uri", "experiment"):
        if name not in content:
            raise _WrongField(name, "is missing")
    for name, value in content.items():
        if not _is_right(name, value):
            raise _WrongField(name, f"cannot be {json.dumps(value)[:40]}")


def _is_right(name: str, value: object) -> bool:
    if name == "start_time_ms":
        return is_count(value)
    if name == "picture":
        return isinstance(value, bool)
    if name == "params":
        return isinstance(value, dict)
    if name in ("tags", "artifacts", "views"):
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    return isinstance(value, str)


def saved_elsewhere(tracking: Path, record: RunRecord) -> Path | None:
    """Return the folder that a record is a copy of: the one where it was saved is still there, and has the same id."""
    own = Path(record.folder)
    try:
        if not record.folder or own.samefile(tracking) or not (own / JOURNAL_FILE).is_file():
            return None
        return own if RunRecord.load(own).run_id == record.run_id else None
    except (OSError, ValueError):
        return None


def address_of(record: RunRecord, given: str | None = None) -> str:
    """MLflow's address of a record that was loaded, with the credentials that no record holds: where the environment
    names the same address, it is taken as it is there.

    Args:
        given: takes the place of both.
    """
    variable = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().rstrip("/")
    if given is None and variable and without_credentials(variable) == record.uri:
        return variable
    return given or record.uri


def launched_ms(run_id: str) -> int | None:
    """Return the time of the launch that an id begins with, in milliseconds since 1970; None where it has none."""
    try:
        return timegm(strptime(run_id[:15], "%Y%m%d-%H%M%S")) * 1000
    except ValueError:
        return None


def _has_quotes(run_id: str) -> bool:
    return "'" in run_id or "`" in run_id


def clean_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as they may be stored: no secrets, and no longer than MLflow takes."""
    return {key: redact(str(value))[:TAG_LENGTH] for key, value in tags.items()}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys. An empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def param_text(value: Any) -> str:
    """A value as the user would write it in the config: `null`, `true`, `[1, 2]`, `0.1`, plain text."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def sweep_tags(sweep_id: str) -> dict[str, str]:
    """Return the tags that tell a sweep's own run from others."""
    return {metrics.KIND: "sweep", metrics.SWEEP_ID: sweep_id}


def trial_tags(sweep_id: str, trial_id: str, predicted_bytes: int | None = None) -> dict[str, str]:
    """Return the tags that tell the run of a sweep's trial from others.

    `metrics.TRIAL_STATE` is not among them, and must not be in a record: what changes goes through
    `RunRecorder.set_tags`, since MLflow gets a record's tags again whenever the run is opened.
    """
    predicted = {} if predicted_bytes is None else {metrics.PREDICTED_PEAK_MEMORY_BYTES: str(predicted_bytes)}
    return {metrics.KIND: "trial", metrics.SWEEP_ID: sweep_id, metrics.TRIAL_ID: trial_id, **predicted}


def trial_state_tags(state: str) -> dict[str, str]:
    """Return the tag of a trial's state, such as `running` or `pruned`, for `RunRecorder.set_tags`."""
    return {metrics.TRIAL_STATE: state}
