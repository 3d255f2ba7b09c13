"""The state of the user's code: commit and branch, and when files were changed since, which ones and a hash."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from paceline.redaction import redact
from paceline.tracking import metrics

GIT_SECONDS = 2.0
"""How long git may take for all of it together; what is not known by then is left out. Usually 0.05 s."""
DIFF_BYTES = 1_000_000
"""How much of a diff is kept, in bytes."""
NAMES_LENGTH = 8000
"""How long the list of changed files may be, in characters: MLflow's limit for a tag."""
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


class GitState:
    """What git says of the repository that a folder is in. Asks at once, and never fails."""

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
        """Whether the tracked files differ from the commit; None when git does not say."""
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
    """As many names as a tag holds, one on each line, and how many more there are."""
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
