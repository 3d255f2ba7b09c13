"""The data sets that a run was trained and validated on, as MLflow shows them: name, fingerprint, size, where from."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.tracking.mlflow_run import MlflowRun
    from paceline.tracking.run_record import RunRecord

KIND = "datasets"
"""Of the journal's entries about them."""
SOURCE_TYPE = "paceline"
DIGEST_LENGTH = 36
"""MLflow's limit for a fingerprint, in characters; the whole one is in the data set's profile."""
NAME_LENGTH = 500
"""MLflow's limit for a name, in characters."""
SOURCE_LENGTH = 65_535
"""MLflow's limit for the text that says where the data come from, in characters."""
_CONTEXT = "mlflow.data.context"
LOADING = (
    *("global_batch_size", "micro_batch_size", "shuffle", "drop_last", "num_workers", "pin_memory"),
    *("prefetch_factor", "persistent_workers", "cache"),
)
"""Keys of the section `data` that say how samples are loaded, and not which ones."""


def datasets_entry(record: "RunRecord", sets: Mapping[str, Any]) -> dict[str, Any]:
    """What the journal keeps of the data sets, as JSON values.

    Args:
        sets: `training` and `validation`, each a mapping with `name`, `size` (samples) and `fingerprint`, or None.
    """
    keys = ("name", "size", "fingerprint")
    found = {role: {key: each.get(key) for key in keys} for role, each in sets.items() if each}
    return {"sets": found, "source": source_text(record.params)}


def source_text(params: Mapping[str, Any]) -> str:
    """Where the data come from, as JSON: what the record's params, whose secrets are hidden, say of the data."""
    data = {key.removeprefix("data."): value for key, value in params.items() if key.startswith("data.")}
    return json.dumps({key: value for key, value in data.items() if key not in LOADING})[:SOURCE_LENGTH]


def send_datasets(content: Mapping[str, Any], remote: "MlflowRun") -> None:
    """Tell MLflow of a run's data sets. It takes a repeat for what it is, and stores nothing twice."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    roles: dict[tuple[str, str], list[str]] = {}
    profiles: dict[tuple[str, str], str] = {}
    for role, each in content["sets"].items():
        whole = str(each["fingerprint"] or f"unknown-{each['size']}")  # no sample could be looked at
        key = str(each["name"])[:NAME_LENGTH], whole[:DIGEST_LENGTH]
        roles.setdefault(key, []).append(role)  # of two that are the same, MLflow would drop one
        profiles[key] = json.dumps({"num_rows": each["size"], "fingerprint": whole})
    inputs = [
        DatasetInput(
            Dataset(*key, SOURCE_TYPE, content["source"], None, profiles[key]),
            [InputTag(_CONTEXT, " and ".join(roles[key]))],
        )
        for key in roles
    ]
    if inputs:
        remote.client.log_inputs(remote.run_id, inputs)
