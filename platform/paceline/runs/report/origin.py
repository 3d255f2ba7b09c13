"""Origin of a run: command, code, data, versions, machine and user."""

from collections.abc import Sequence
from typing import Any

from paceline.reports.page import Fact
from paceline.reports.text import time_text
from paceline.tracking import metrics
from paceline.tracking.environment import ENVIRONMENT_FILE
from paceline.tracking.provenance import changed_and_untracked, config_not_in_commit
from paceline.tracking.recorded_run import CONFIG_FILE, RecordedRun
from paceline.tracking.run_record import ARTIFACT_FOLDER

LONGEST = 4000
_VERSION = metrics.version_tag("")
_TAGS = {
    metrics.COMMAND: "command",
    metrics.GIT_COMMIT: "git commit",
    metrics.GIT_BRANCH: "git branch",
    metrics.GIT_DIFF_SHA256: "SHA-256 of the diff",
    metrics.USER: "user",
    metrics.HOST: "machine",
    metrics.OS: "operating system",
    metrics.CPU_COUNT: "cores",
    metrics.DEVICE: "device",
}
_AS_CODE = (metrics.COMMAND, metrics.GIT_COMMIT, metrics.GIT_DIFF_SHA256)
_NEEDS_UI = " (while paceline ui runs, at the port that it prints)"


def origin_values(run: RecordedRun, places: Sequence[Fact]) -> dict[str, Any]:
    """Return the values of the template's section `origin`.

    Args:
        run: the record.
        places: where its files are.
    """
    tags = run.tags
    facts = [Fact(label, _cut(tags.get(key, "")), key in _AS_CODE) for key, label in _TAGS.items()]
    versions = [f"{key.removeprefix(_VERSION)} {value}" for key, value in tags.items() if key.startswith(_VERSION)]
    facts += [
        *_files(run),
        *_data(run),
        Fact("versions", ", ".join(versions)),
        Fact("resumed" if run.resumes else "began", time_text(run.began_ms)),
        Fact("ended", time_text(run.ended_ms)),
        *places,
        Fact("MLflow", run.url, note=_NEEDS_UI if run.needs_ui else "", url=run.url),
    ]
    return {"origin": [fact for fact in facts if fact.value], "environment": run.file(ENVIRONMENT_FILE)}


def _files(run: RecordedRun) -> list[Fact]:
    """Files that differ from the commit, and separately those that git does not track."""
    if not run.tags.get(metrics.GIT_COMMIT):
        return []
    changed, untracked = changed_and_untracked(run.tags)
    state = {"false": "none", "true": "some"}.get(run.tags.get(metrics.GIT_DIRTY, ""), "")
    facts = [
        Fact("files changed since the commit", _cut(", ".join(changed)) or state, is_code=bool(changed)),
        Fact("untracked files", _cut(", ".join(untracked)), is_code=True),
    ]
    missing, recorded = config_not_in_commit(run.tags), run.folder / ARTIFACT_FOLDER / CONFIG_FILE
    if missing and recorded.is_file():
        note = f" since the commit does not have {missing} as it was"
        facts.append(Fact("config as recorded", str(recorded), is_code=True, note=note))
    return facts


def _data(run: RecordedRun) -> list[Fact]:
    """The data sets that it was trained and validated on."""
    facts = []
    for role, each in run.datasets.items():
        size = each.get("size")
        count = f"{size:,} samples" if isinstance(size, int) else ""
        parts = [str(each.get("name") or ""), count, str(each.get("fingerprint") or "")]
        facts.append(Fact(f"{role} data", ", ".join(filter(None, parts))))
    return facts


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
