"""Provenance of a run: the commit, changed files, installed packages, and no secrets."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.tracking import metrics
from paceline.tracking import provenance as module
from paceline.tracking.environment import environment_text
from paceline.tracking.provenance import GIT_DIFF, GitState, launch_tags, provenance
from paceline.tracking.run_record import RunRecord

CANARY = "canary-S3cr3t"


def git(folder: Path, *arguments: str) -> str:
    """Run git; its output."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of two files, one of them in a folder."""
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("one = 1\n")
    (folder / "inner" / "b ü.py").write_text("two = 2\n")
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_the_tags_name_commit_branch_command_and_versions(repository: Path) -> None:
    (repository / "loose.py").write_text("x")  # an untracked file leaves the commit clean
    clean = launch_tags("paceline train a.yaml", repository)
    assert clean[metrics.GIT_CHANGED_FILES] == "loose.py (untracked)"
    assert clean[metrics.GIT_COMMIT] == git(repository, "rev-parse", "HEAD")
    assert (clean[metrics.GIT_BRANCH], clean[metrics.GIT_DIRTY]) == ("main", "false")
    assert metrics.GIT_DIFF_SHA256 not in clean
    assert clean[metrics.SOURCE_NAME] == "paceline train a.yaml"
    assert clean[metrics.version_tag("mlflow")].startswith("3.")
    git(repository, "checkout", "--detach")
    (repository / "a.py").unlink()
    (repository / "inner" / "b ü.py").write_text("two = 3\n")
    (repository / "staged.py").write_text("x")
    git(repository, "add", "staged.py")
    changed = launch_tags("x", repository / "inner")  # any folder of the repository will do
    assert changed[metrics.GIT_COMMIT] == clean[metrics.GIT_COMMIT]
    assert (metrics.GIT_BRANCH in changed, changed[metrics.GIT_DIRTY]) == (False, "true")
    names = changed[metrics.GIT_CHANGED_FILES].splitlines()
    assert names == ["a.py (deleted)", "inner/b ü.py", "staged.py (added)", "loose.py (untracked)"]


def test_the_hash_is_that_of_the_change_whatever_the_settings(repository: Path) -> None:
    def digest(text: str) -> str:
        (repository / "a.py").write_text(text)
        return launch_tags("x", repository / "inner")[metrics.GIT_DIFF_SHA256]

    first, other = digest("one = 2\n"), digest("one = 3\n")
    git(repository, "add", "a.py")
    for setting in ("diff.noprefix=true", "diff.relative=true", "color.ui=always", "diff.context=0"):
        git(repository, "config", *setting.split("="))
    assert digest("one = 2\n") == first != other


def test_the_diff_is_kept_on_request_alone_and_without_secrets(repository: Path) -> None:
    (repository / "a.py").write_text(f"one = 1\napi_key = '{CANARY}'\nurl = 'https://me:{CANARY}@host/x'\n")
    assert GIT_DIFF not in provenance("x", repository).artifacts
    found = provenance("x", repository, git_diff=True)
    record = RunRecord("r", "n", "http://h", "e", tags=found.tags, artifacts=found.artifacts)
    diff = record.artifacts[GIT_DIFF]
    assert "+api_key = ***" in diff.replace("'", "")
    assert CANARY not in json.dumps([record.artifacts[GIT_DIFF], dict(record.tags)])


def test_of_large_changes_a_part_is_kept_and_all_is_hashed_and_counted(repository: Path) -> None:
    lines = [f"x{number} = {number}" for number in range(120_000)]
    (repository / "a.py").write_text("\n".join(lines))
    one = GitState(repository, with_diff=True)
    (repository / "a.py").write_text("\n".join([*lines[:-1], "another end"]))
    for number in range(700):
        (repository / f"a rather long name {number:03d}.txt").write_text("x")
    other = GitState(repository, with_diff=True)
    assert 0.9 * module.DIFF_BYTES < len(one.diff.encode()) <= module.DIFF_BYTES
    assert one.diff.endswith("cut: only 1,000,000 bytes are kept\n")
    assert one.tags[metrics.GIT_DIFF_SHA256] != other.tags[metrics.GIT_DIFF_SHA256]
    text = other.tags[metrics.GIT_CHANGED_FILES]
    _, *untracked, rest = text.splitlines()
    assert len(text) <= 8000
    assert all(name.endswith(" (untracked)") for name in untracked)
    assert rest == f"... and {700 - len(untracked)} more"
    assert len(untracked) > 200


@pytest.mark.parametrize("slow", [pytest.param("status", marks=pytest.mark.slow), "diff", "rev-parse"])
def test_a_hanging_git_is_given_up_in_time(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    (repository / "a.py").write_text("changed")
    real = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    stub = tmp_path / "bin" / "git"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\ncase "$*" in *{slow}*) exec sleep 600;; esac\nexec {real} "$@"\n')
    stub.chmod(stub.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(stub.parent), prepend=":")
    monkeypatch.setattr(module, "GIT_SECONDS", 5.0)
    tags = GitState(repository).tags
    known = {metrics.GIT_DIFF_SHA256: "status", metrics.GIT_CHANGED_FILES: "diff"}
    assert {key for key in known if key in tags} == {key for key, other in known.items() if other == slow}
    assert tags.get(metrics.GIT_DIRTY) == (None if slow == "rev-parse" else "true")


def test_where_there_is_no_repository_no_git_or_no_folder_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two nodes on one machine, the second unpacks a job's folder again, over the one that its driver works in."""
    assert metrics.GIT_COMMIT not in launch_tags("x", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert metrics.GIT_COMMIT not in launch_tags("x", tmp_path)
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert launch_tags("x")[metrics.COMMAND] == "x"


def test_the_environment_is_what_the_standard_library_finds_and_takes_no_longer() -> None:
    """In a process of its own: in this one, what other tests have imported may have added places to look in."""
    code = """
import json, sys, time
from paceline.tracking.environment import environment_text
began = time.process_time()
text = environment_text()
took = time.process_time() - began
assert not {"torch", "ray", "mlflow", "numpy"} & set(sys.modules)
import importlib.metadata
began = time.process_time()
found = {f"{each.name}=={each.version}" for each in importlib.metadata.distributions()}
assert took < 2 * (time.process_time() - began), took
print(json.dumps([text, sorted(found)]))
"""
    text, found = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    lines = [line.partition("  #")[0] for line in text.splitlines() if not line.startswith("#")]
    assert set(lines) == set(found)
    assert lines == sorted(lines, key=lambda line: line.partition("==")[0].lower().replace("_", "-").replace(".", "-"))
    assert f"CPython {sys.version_info.major}.{sys.version_info.minor}" in text


def test_packages_from_elsewhere_name_their_origin_without_paths_and_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_url = {"url": f"https://me:{CANARY}@host/lib.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    origins = {
        "from-git": git_url,
        "own": {"url": f"file://{tmp_path}/own", "dir_info": {"editable": True}},
        "archive": {"url": f"https://host/a.whl?token={CANARY}", "archive_info": {}},
        "odd": ["no mapping"],
    }
    for name, origin in origins.items():
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nVersion: 9\n")
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    lines = environment_text().splitlines()[3:]
    assert lines == [
        "archive==1.0  # https://host/a.whl",
        "from-git==1.0  # git+https://host/lib.git@abc123",
        "odd==1.0",
        "own==1.0  # editable",
    ]
