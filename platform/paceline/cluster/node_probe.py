"""Questions to a node before workers are sent there: its software, and its view of the storage and the data.

Runs in a task on the node itself; imports nothing that takes time.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.errors import EnvironmentFault
from paceline.private_files import write_private
from paceline.tracking.environment import package_version

SIGHT_SECONDS = 3.0
"""How long a file may take to be seen on another machine; network file systems keep what they know for a while."""


@dataclass(frozen=True)
class Questions:
    """What a node is asked."""

    packages: tuple[str, ...] = ()
    """Whose versions are reported."""
    storage: str = ""
    """Folder or address of the runs; empty: it is not looked at."""
    token: str = ""
    """Name of the file that the driver has written into that folder; its text is the name. Empty for an address."""
    places: tuple[str, ...] = ()
    """Files and folders of the data."""


@dataclass(frozen=True)
class Answers:
    """What it tells."""

    python: str
    versions: dict[str, str] = field(default_factory=dict)
    """By package, without what is behind a `+`."""
    build: str = ""
    """What torch was built for: `cpu`, or a version of CUDA."""
    storage_fault: str = ""
    """What is wrong with the storage as it is seen from here; empty: nothing."""
    missing: tuple[str, ...] = ()
    """Places of the data that are not there."""


def answer(questions: Questions, mark: str = "") -> Answers:
    """Look at this node.

    Args:
        questions: what is to be looked at.
        mark: what the name of the file ends with that this node writes into the storage.
    """
    versions = {name: package_version(name) for name in questions.packages}
    return Answers(
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        versions={name: (version or "missing").partition("+")[0] for name, version in versions.items()},
        build=torch_build(),
        storage_fault=_look_at_storage(questions, mark),
        missing=tuple(place for place in questions.places if not os.path.exists(place)),
    )


def torch_build() -> str:
    """What torch was built for, without importing it: `cpu`, or a version of CUDA; empty where it does not say."""
    spec = find_spec("torch")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return ""
    found = re.search(r"^cuda\b.*?= *(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
    return "" if found is None else f"CUDA {found[1] or found[2]}" if found[1] or found[2] else "cpu"


def written_name(token: str, mark: str) -> str:
    """Name of the file that a node writes into the storage."""
    return f"{token}-{mark}"


def is_seen(file: Path) -> bool:
    """Whether a file is there, or comes to be seen soon."""
    end = time.monotonic() + SIGHT_SECONDS
    while not file.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _look_at_storage(questions: Questions, mark: str) -> str:
    if not questions.storage:
        return ""
    if not questions.token:
        return _look_at_address(questions.storage)
    folder = Path(questions.storage)
    try:
        if not folder.is_dir():
            return "is not there"
        if not is_seen(folder / questions.token):
            return "is another folder there"
        if (folder / questions.token).read_text() != questions.token:
            return "is another folder there"
        write_private(folder / written_name(questions.token, mark), questions.token.encode())
    except OSError as error:
        return f"cannot be used there: {error.strerror or error}"
    return ""


def _look_at_address(address: str) -> str:
    """Whether an object store can be used from here."""
    from paceline.storage.address import parse
    from paceline.storage.remote_folder import RemoteFolder

    try:
        RemoteFolder(parse(address)).probe()
    except EnvironmentFault as fault:
        return f"cannot be used there: {fault.message}"
    return ""


def forget(storage: str, name: str) -> None:
    """Remove a file from a folder of this node, if it is there."""
    Path(storage, name).unlink(missing_ok=True)


def run_on(node: str, function: Any, *arguments: Any, **options: Any) -> Any:
    """Start a task that takes nothing, on a certain node.

    Args:
        node: its id.
        function: what runs there.
        arguments: of the function.
        options: more of Ray's own.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there, **options)(function).remote(*arguments)


def all_of(tasks: Sequence[Any], seconds: float) -> list[Any]:
    """What each task returned, an exception in place of what it raised, and a TimeoutError where it took too long."""
    import ray

    done, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=seconds) if tasks else ([], [])
    found: list[Any] = []
    for task in tasks:
        if task not in done:
            ray.cancel(task, force=True)
            found.append(TimeoutError())
            continue
        try:
            found.append(ray.get(task))
        except Exception as error:  # Ray's, or what the task raised
            found.append(error)
    return found
