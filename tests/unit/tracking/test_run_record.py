"""What is known at launch: params as the user wrote them, no secrets, and a file that is checked when it is read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import metrics
from paceline.tracking.run_record import DamagedRecord, RunRecord, flatten
from support.golden import Golden

CANARY = "canary-S3cr3t"


def test_a_nested_config_becomes_params_as_the_user_wrote_them() -> None:
    nested = {"a": {"b": {"c": True}, "empty": {}}, "d": [1, 2], "e": None, "f": "bf16"}
    record = RunRecord("r", "n", "http://h", "e", params=flatten(nested))
    assert record.params == {"a.b.c": "true", "a.empty": "{}", "d": "[1, 2]", "e": "null", "f": "bf16"}


def test_long_params_are_cut_at_the_limit_of_mlflow() -> None:
    record = RunRecord("r", "n", "http://h", "e", params={"long": "x" * 7000, "fits": "x" * 6000})
    assert {key: len(value) for key, value in record.params.items()} == {"long": 6000, "fits": 6000}


@pytest.mark.parametrize(("run_id", "parent"), [("r' or '1", ""), ("", ""), ("r", "r"), ("r", "a' or '1")])
def test_an_id_that_would_break_the_search_and_a_run_as_its_own_parent_are_refused(run_id: str, parent: str) -> None:
    RunRecord("r", "n", "http://h", "e", parent="another")
    with pytest.raises(ValueError, match=re.escape(repr(parent or run_id))):
        RunRecord(run_id, "n", "http://h", "e", parent=parent)


def test_no_secret_is_kept_or_shown(tmp_path: Path) -> None:
    uri = f"http://user:{CANARY}@host:5000"
    params = {"tracking.uri": uri, "data.args.api_key": CANARY, "data.args.pad_token": "<pad>"}
    config = f"tracking:\n  uri: {uri}\ndata: {{args: {{password: {CANARY}, size: 28}}}}\n"
    record = RunRecord("r", "n", uri, "e", params, {"note": f"token={CANARY}"}, {"config.yaml": config})
    record.save(tmp_path)
    assert CANARY not in repr(record)
    assert CANARY not in (tmp_path / "record.json").read_text()
    assert record.params["data.args.pad_token"] == "<pad>"
    assert "size: 28" in record.artifacts["config.yaml"]
    assert record.uri == uri


def test_a_saved_record_is_read_again_without_the_credentials(tmp_path: Path) -> None:
    record = RunRecord("r", "n", f"http://user:{CANARY}@host:5000", "e", {"lr": 0.1}, {"t": "v"}, {"a.txt": "A"})
    record.save(tmp_path)
    assert RunRecord.load(tmp_path, record.uri) == record
    assert RunRecord.load(tmp_path).uri == "http://host:5000"


def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    RunRecord("r", "n", "http://h", "e").save(tmp_path)
    content = json.loads((tmp_path / "record.json").read_text())
    for key in ("parent", "title", "picture"):
        del content[key]
    (tmp_path / "record.json").write_text(json.dumps(content))
    record = RunRecord.load(tmp_path)
    assert (record.parent, record.title, record.picture) == ("", "", True)
    assert (record.tags[metrics.NAME], record.tags[metrics.KIND]) == ("n", "run")


WRONG = [
    *((field, value) for field in ("run_id", "name", "uri", "params", "tags", "views") for value in (None, 5, [1])),
    *[("parent", []), ("start_time_ms", "x"), ("start_time_ms", 10**30), ("picture", None), ("title", 5)],
    *[("experiment", 5), ("artifacts", [1]), ("folder", 1)],
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=str)
def test_a_record_with_a_wrong_field_names_it(tmp_path: Path, field: str, value: Any) -> None:
    RunRecord("r", "n", "http://host", "e").save(tmp_path)
    file = tmp_path / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), field: value}))
    with pytest.raises(DamagedRecord) as caught:
        RunRecord.load(tmp_path)
    assert caught.value.code == "damaged-record"
    assert caught.value.fields == {"file": file, "field": field}


@pytest.mark.parametrize(
    ("text", "field"), [("[]", ""), ("{", ""), ("[" * 100_000, ""), ("{}", "run_id"), ('{"colour": 1}', "colour")]
)
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str, field: str, golden: Golden) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(DamagedRecord) as caught:
        RunRecord.load(tmp_path)
    assert caught.value.fields == {"file": tmp_path / "record.json", "field": field}
    golden(str(caught.value).replace(str(tmp_path.parent), "<parent>"))
