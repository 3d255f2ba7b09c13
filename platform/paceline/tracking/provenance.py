"""Provenance of a run: command, git state, installed packages, machine and user. Gathered on the driver, at launch."""

import getpass
import os
import platform
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from paceline.redaction import redact, redact_arguments
from paceline.tracking import metrics
from paceline.tracking.environment import ENVIRONMENT_FILE, environment_text, package_version
from paceline.tracking.run_record import clean_tags

PACKAGES = ("paceline", "torch", "torchvision", "ray", "mlflow")
GIT_DIFF = "git.diff"
GIT_SECONDS = 2.0
"""Time for all calls of git together; what is not known by then is left out. Usually 0.05 s."""
DIFF_BYTES = 1_000_000
"""Bytes of a diff that are kept."""
NAMES_LENGTH = 8000
"""Characters of the list of changed files: MLflow's limit for a tag."""
UNTRACKED = " (untracked)"
"""Behind the name of a file that git does not track."""
_CHUNK = 1 << 16
# Whatever the user's settings say: a hash must not depend on them. Nothing within a submodule is looked at.
_STATUS = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=dirty")
_DIFF = (
    *("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "-c", "core.quotePath=true"),
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index", "--no-relative"),
    *("--unified=3", "--diff-algorithm=myers", "--submodule=short", "--ignore-submodules=dirty", "HEAD"),
)


@dataclass(frozen=True)
class Provenance:
    """For a `RunRecord`."""

    tags: Mapping[str, str]
    artifacts: Mapping[str, str]
    """Name to text: what is installed, and the diff where it is wanted."""


def provenance(command: str, folder: Path | None = None, git_diff: bool = False) -> Provenance:
    """All of it. Never fails.

    Args:
        command: the command line that started the run.
        folder: where to ask git; by default the working folder.
        git_diff: whether the changes since the commit are kept, too, and not only their hash.
    """
    git = GitState(folder, git_diff)
    artifacts = {ENVIRONMENT_FILE: environment_text(), **({GIT_DIFF: git.diff} if git.diff else {})}
    return Provenance(_tags(command, git), artifacts)


def launch_tags(command: str, folder: Path | None = None) -> dict[str, str]:
    """The tags alone, for the runs of a launch whose own run has the rest. Never fails.

    Args:
        command: the command line that started the run.
        folder: where to ask git; by default the working folder.
    """
    return _tags(command, GitState(folder))


def command_line(arguments: list[str]) -> str:
    """`sys.argv` as it can be pasted into a shell, without secrets: `***` stands in their place."""
    hidden = redact_arguments(arguments)
    return shlex.join([Path(hidden[0]).name, *hidden[1:]]) if hidden else ""


def config_not_in_commit(tags: Mapping[str, str]) -> str:
    """The config file that a run's command names, where the run's commit does not have it, or has another one: git
    does not track it, or it was changed. Empty where nothing says so.

    Args:
        tags: the run's.
    """
    given = _config_file(tags.get(metrics.COMMAND, ""))
    changed, untracked = changed_and_untracked(tags)
    known = tags.get(metrics.GIT_COMMIT) and given
    return given if known and any(_may_be(name, given) for name in [*changed, *untracked]) else ""


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


class GitState:
    """Git's state of the repository that a folder is in. Asks at once, and never fails."""

    def __init__(self, folder: Path | None = None, with_diff: bool = False) -> None:
        """Args:
        folder: by default the working folder.
        with_diff: whether to keep the diff, too.
        """
        self._folder = folder
        self._deadline = time.monotonic() + GIT_SECONDS
        self.tags: dict[str, str] = {}
        """See `metrics` for the keys; empty outside of a repository."""
        self.diff = ""
        """The diff of the tracked files against the commit, without secrets and cut at `DIFF_BYTES`; empty when it is
        not wanted, or there is none."""
        head = self._ask("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
        if head is not None:
            commit, _, branch = head.strip().partition("\n")
            self.tags[metrics.GIT_COMMIT] = commit
            self.tags |= {metrics.GIT_BRANCH: branch} if branch != "HEAD" else {}
            self._look_for_changes(with_diff)

    def _look_for_changes(self, with_diff: bool) -> None:
        found: list[str | None] = []
        # both go through all files, so side by side
        status = threading.Thread(target=lambda: found.append(self._ask(*_STATUS)), daemon=True)
        status.start()
        differs = self._take_diff(with_diff)
        status.join()
        names = next(iter(found), None)
        if differs is None and names is not None:
            differs = any(not entry.startswith("??") for entry in names.split("\0") if entry)
        if differs is not None:
            self.tags[metrics.GIT_DIRTY] = "true" if differs else "false"
        if names:
            self.tags[metrics.GIT_CHANGED_FILES] = _cut(_names(names))

    def _take_diff(self, keep: bool) -> bool | None:
        """Return True if the tracked files differ from the commit; None when git does not say."""
        digest, kept, size = sha256(), bytearray(), 0

        def take(chunk: bytes) -> None:
            nonlocal size
            size += len(chunk)
            digest.update(chunk)
            if keep and len(kept) < 2 * DIFF_BYTES:
                kept.extend(chunk)

        if not self._read(take, *_DIFF):
            return None
        if size:
            self.tags[metrics.GIT_DIFF_SHA256] = digest.hexdigest()
            self.diff = _cut_diff(bytes(kept))
        return size > 0

    def _ask(self, *arguments: str) -> str | None:
        parts: list[bytes] = []
        return b"".join(parts).decode(errors="replace") if self._read(parts.append, *arguments) else None

    def _read(self, take: Callable[[bytes], None], *arguments: str) -> bool:
        """Hand on what git prints; whether it ended well and in time."""
        try:
            process = subprocess.Popen(
                ["git", "--no-optional-locks", *arguments],
                cwd=self._folder,  # None rather than this process's folder by name: it may have been removed
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
        except OSError:
            return False
        timer = threading.Timer(max(self._deadline - time.monotonic(), 0.0), process.kill)
        timer.start()
        try:
            with process:
                assert process.stdout is not None
                while chunk := process.stdout.read(_CHUNK):
                    take(chunk)
        finally:
            timer.cancel()
        return process.returncode == 0


def changed_and_untracked(tags: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The names in the tag `metrics.GIT_CHANGED_FILES`, as `git status` has them from the root of the repository: of
    the files that differed from the commit, and of those that git does not track."""
    lines = [line for line in tags.get(metrics.GIT_CHANGED_FILES, "").splitlines() if line]
    first = next((place for place, line in enumerate(lines) if line.endswith(UNTRACKED)), len(lines))
    return lines[:first], [line.removesuffix(UNTRACKED) for line in lines[first:]]


def _names(status: str) -> list[str]:
    """Names from `git status --porcelain -z`, and what is special about them."""
    entries = [entry for entry in status.split("\0") if entry]
    return [f"{entry[3:]}{_mark(entry[:2])}" for entry in entries]


def _mark(letters: str) -> str:
    if letters == "??":
        return UNTRACKED
    return " (deleted)" if "D" in letters else " (added)" if "A" in letters else ""


def _cut(names: list[str]) -> str:
    """Return as many names as a tag holds, one on each line, and how many more there are."""
    lines = [redact(" ".join(name.split())) for name in names]
    text = "\n".join(lines)
    if len(text) <= NAMES_LENGTH:
        return text
    shown = text[: NAMES_LENGTH - 30].count("\n")
    return "\n".join([*lines[:shown], f"... and {len(lines) - shown} more"])


def _cut_diff(data: bytes) -> str:
    # first the secrets: of one that lies across the cut, a part would be left
    clean = redact(data.decode(errors="replace")).encode()
    if len(clean) <= DIFF_BYTES:
        return clean.decode()
    return clean[: DIFF_BYTES - 100].decode(errors="ignore") + f"\n... cut: only {DIFF_BYTES:,} bytes are kept\n"


def _tags(command: str, git: GitState) -> dict[str, str]:
    tags = {
        metrics.COMMAND: command,
        metrics.SOURCE_NAME: command,
        metrics.SOURCE_TYPE: "LOCAL",
        metrics.USER: _user(),
        metrics.HOST: platform.node(),
        metrics.OS: f"{platform.system()} {platform.release()} {platform.machine()}",
        metrics.CPU_COUNT: str(usable_cores()),
        metrics.version_tag("python"): platform.python_version(),
        **git.tags,
    }
    for package in PACKAGES:
        tags[metrics.version_tag(package)] = package_version(package) or "not installed"
    return clean_tags(tags)


def _config_file(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    return next((word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word), "")


def _may_be(name: str, path: str) -> bool:
    """Return True if git's name of a file, from the root of the repository, may be a path given in one of its folders;
    a name with a slash behind it is that of a whole folder."""
    own = PurePosixPath(name.partition(" (")[0]).parts
    whole = PurePosixPath(path).parts
    given = tuple(part for part in whole if part not in ("/", ".."))
    if name.endswith("/"):
        return own[-1] in given[:-1]
    # one that leaves its folder, or begins at that of the machine, may be longer than git's
    length = len(given) if given == whole else min(len(own), len(given))
    return own[-length:] == given[-length:]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
