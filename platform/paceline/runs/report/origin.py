"""Where a run comes from: command, code, versions, machine and user."""

from paceline.runs.report.html import Child, tag
from paceline.runs.report.parts import Section, code, facts, more, time_text
from paceline.runs.report.reading import CONFIG_FILE, Told
from paceline.tracking import metrics
from paceline.tracking.environment import ENVIRONMENT_FILE
from paceline.tracking.git_state import changed_and_untracked
from paceline.tracking.provenance import config_not_in_commit
from paceline.tracking.uploads import ARTIFACT_FOLDER

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
_AS_CODE = (metrics.COMMAND, metrics.GIT_COMMIT, metrics.GIT_CHANGED_FILES, metrics.GIT_DIFF_SHA256)
LONGEST = 4000


def origin_section(told: Told, places: list[tuple[str, Child]]) -> Section:
    """All that the record says of it.

    Args:
        told: the record.
        places: where things are, label and text.
    """
    rows = [(label, _text(key, told.tags[key])) for key, label in _TAGS.items() if told.tags.get(key)]
    times = [("resumed" if told.resumes else "began", time_text(told.began_ms)), ("ended", time_text(told.ended_ms))]
    versions = [f"{key.removeprefix(_VERSION)} {value}" for key, value in told.tags.items() if key.startswith(_VERSION)]
    every = [*rows, *_files(told), *_data(told), ("versions", ", ".join(versions)), *times, *places]
    environment = told.file(ENVIRONMENT_FILE)
    content: list[Child] = [facts([(label, value) for label, value in every if value])]
    if environment:
        content.append(more("Everything that was installed", code(environment)))
    return Section("origin", "Where it comes from", content)


def _files(told: Told) -> list[tuple[str, Child]]:
    """The files that differed from the commit, and apart from them those that git does not track."""
    if not told.tags.get(metrics.GIT_COMMIT):
        return []
    changed, untracked = changed_and_untracked(told.tags)
    named = {"files changed since the commit": changed, "untracked files": untracked}
    rows = [(label, _text(metrics.GIT_CHANGED_FILES, ", ".join(names))) for label, names in named.items() if names]
    words = {"false": "none", "true": "some"}.get(told.tags.get(metrics.GIT_DIRTY, ""), "")
    rows = rows if changed else [("files changed since the commit", words), *rows]
    missing, recorded = config_not_in_commit(told.tags), told.folder / ARTIFACT_FOLDER / CONFIG_FILE
    if not missing or not recorded.is_file():
        return rows
    why = tag("span", " since the commit does not have ", tag("code", missing), " as it was", class_="quiet")
    return [*rows, ("config as recorded", [tag("code", str(recorded)), why])]


def _data(told: Told) -> list[tuple[str, Child]]:
    """The data sets that it was trained and validated on."""
    rows: list[tuple[str, Child]] = []
    for role, each in told.datasets.items():
        size = each.get("size")
        parts = [str(each.get("name", "")), f"{size:,} samples" if isinstance(size, int) else ""]
        mark = each.get("fingerprint")
        rows.append(
            (f"{role} data", [", ".join(filter(None, parts)), [", ", tag("code", str(mark))] if mark else None])
        )
    return rows


def _text(key: str, value: str) -> Child:
    shown = value if len(value) <= LONGEST else f"{value[:LONGEST]}…"
    return tag("code", shown) if key in _AS_CODE else shown
