"""Checks that every node that may get a worker can work: it answers, has the same software, sees storage and data."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from paceline.cluster.listener import Events
from paceline.cluster.node_probe import Answers, Questions, all_of, answer, forget, is_seen, run_on, written_name
from paceline.cluster.nodes import (
    Node,
)
from paceline.errors import EnvironmentFault, last_line
from paceline.private_files import make_folder, write_private
from paceline.storage.address import is_address

ANSWER_SECONDS = 30.0
"""Seconds that nodes may take to answer: they start a process, and unpack the code that is sent."""
INSTALL_SECONDS = 600.0
"""The same where each has to install the job's packages first."""
FORGET_SECONDS = 5.0
INSTALLING = {"pip", "uv", "conda", "image_uri", "container"}
"""Parts of a runtime environment that take minutes to set up."""
STRICT = ("python", "ray", "torch")
"""Software whose version must be the same everywhere: processes with other versions cannot communicate, or compute
other results."""
_FALLBACK = ("torch", "torchvision", "ray", "mlflow", "numpy", "safetensors", "pydantic")
_FILE = ".paceline-check-"


def check_nodes(nodes: Sequence[Node], driver: str, storage: str, places: Sequence[str], listener: Events) -> None:
    """Check all nodes at the same time. The driver's own node is not checked if it is the only one.

    Args:
        nodes: those that may get a worker.
        driver: id of the node that the driver is connected to.
        storage: folder of the runs, which the driver has made, or an address.
        places: files and folders of the data, which each node needs.
        listener: takes the differences that are allowed.

    Raises:
        EnvironmentFault: a node does not answer, has another Python, Ray or torch, or lacks storage or data.
    """
    if all(node.id == driver for node in nodes):
        return
    packages = dependencies()
    with file_in(storage) as token:
        questions = Questions(packages, storage, token, tuple(places))
        tasks = [run_on(node.id, answer, questions, node.id) for node in nodes]
        found = dict(zip(nodes, all_of(tasks, answer_seconds()), strict=True))
        answers = answers_in(found)
        if fault := storage_fault(answers, storage, token):
            raise EnvironmentFault(fault, "storage-not-shared", storage=storage)
    own = answer(Questions(packages))
    if fault := software_fault(own, answers):
        names = [node.name for node, told in answers.items() if _strict(told) != _strict(own)]
        raise EnvironmentFault(fault, "software-differs", nodes=names)
    for text in differences(own, answers):
        listener.event("warning", {"code": "package-differs", "message": text})
    if fault := data_fault(answers):
        missing = sorted({place for told in answers.values() for place in told.missing})
        raise EnvironmentFault(fault, "data-missing", missing=missing)


def dependencies() -> tuple[str, ...]:
    """Names of the packages that this one needs."""
    try:
        told = requires("paceline") or []
    except PackageNotFoundError:  # it has travelled here as a folder
        return _FALLBACK
    names = [match[0] for text in told if "extra ==" not in text and (match := re.match(r"[\w.-]+", text))]
    return tuple(names) or _FALLBACK


def answer_seconds() -> float:
    """Return the seconds that nodes may take, which depend on what this job has them install first."""
    import ray

    if not ray.is_initialized():  # Ray would connect by itself, to whatever cluster it has last heard of
        return ANSWER_SECONDS
    with suppress(Exception):  # Ray has no such thing for some connections
        if INSTALLING & set(ray.get_runtime_context().runtime_env or {}):
            return INSTALL_SECONDS
    return ANSWER_SECONDS


def silence_fault(reasons: Mapping[Node, str], seconds: float) -> str:
    """Return the message about nodes that did not answer. A reason is empty if the node only took too long."""
    texts = [f"{node.name}: {reason or f'no answer within {seconds:g} s'}" for node, reason in reasons.items()]
    return (
        f"{_nodes(len(texts))} cannot run anything: {'; '.join(texts)}: look there for a full disk, too little memory "
        "or a Ray that hangs, or remove it from the cluster"
    )


def software_fault(own: Answers, answers: Mapping[Node, Answers]) -> str:
    """Return the message about nodes with other software, with a table of the versions; empty if all have the same."""
    expected = _strict(own)
    differing = {node: _strict(told) for node, told in answers.items() if _strict(told) != expected}
    if not differing:
        return ""
    rows = [("", *STRICT), ("this process", *expected), *((node.name, *has) for node, has in differing.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines = "\n".join(line.rstrip() for line in table)
    return (
        f"{_nodes(len(differing))} of {len(answers)} with other software than this process:\n{lines}\n"
        "install the same versions everywhere, such as by one container image, or with `uv sync` on each node"
    )


def differences(own: Answers, answers: Mapping[Node, Answers]) -> list[str]:
    """Return the differences that are allowed: a sentence for each package."""
    texts = []
    for name in (*own.versions, "torch's build"):
        if name in STRICT:
            continue
        here = _version(own, name)
        others: dict[str, list[str]] = {}
        for node, told in answers.items():
            if _version(told, name) != here:
                others.setdefault(_version(told, name), []).append(node.name)
        if others:
            there = ", ".join(f"{version or 'unknown'} on {' and '.join(names)}" for version, names in others.items())
            texts.append(f"{name} is {here or 'unknown'} here, but {there}")
    return texts


def data_fault(answers: Mapping[Node, Answers]) -> str:
    """Return the message about nodes that lack data; empty if none does."""
    lacking: dict[str, list[str]] = {}
    for node, told in answers.items():
        for place in told.missing:
            lacking.setdefault(place, []).append(node.name)
    if not lacking:
        return ""
    texts = [f"{place} is not there on {' and '.join(names)}" for place, names in lacking.items()]
    return (
        f"data: {'; '.join(texts)}: every node that may get a worker needs the data at the same place; copy them "
        "there, or name a folder that all nodes share"
    )


def storage_fault(answers: Mapping[Node, Answers], storage: str, token: str) -> str:
    """Return the message about nodes that do not see the storage as this process does; empty if all do. Removes their
    own files there."""
    faults = {node: told.storage_fault for node, told in answers.items()}
    if token:
        for node, fault in faults.items():
            if not fault and not is_seen(Path(storage) / written_name(token, node.id)):
                faults[node] = "is another folder there: what that node writes is not seen here"
        _forget(storage, token, [node for node, fault in faults.items() if not answers[node].storage_fault and fault])
    if not any(faults.values()):
        return ""
    texts = "; ".join(f"{node.name}: {fault}" for node, fault in faults.items() if fault)
    hint = "mount the same folder at the same path on every node, such as over NFS" if token else "grant access there"
    return f"storage.path {storage} is not the same place on all nodes: {texts}: {hint}"


def _forget(storage: str, token: str, nodes: Sequence[Node]) -> None:
    """Have nodes remove the files that they have written into folders that are not this one."""
    all_of([run_on(node.id, forget, storage, written_name(token, node.id)) for node in nodes], FORGET_SECONDS)


@contextmanager
def file_in(storage: str) -> Iterator[str]:
    """Yield the name of a new file in the storage folder, empty for an address. Files that nodes write beside it are
    removed afterwards."""
    if not storage or is_address(storage):
        yield ""
        return
    folder, token = Path(storage), f"{_FILE}{secrets.token_hex(8)}"
    lacking = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        make_folder(folder)
        write_private(folder / token, token.encode())
    except OSError as error:
        message = f"the folder {folder} is not writable: {error.strerror or error}"
        raise EnvironmentFault(message, "folder-not-writable", folder=str(folder)) from error
    try:
        yield token
    finally:
        for file in (folder / token, *folder.glob(f"{token}-*")):
            with suppress(OSError):
                file.unlink()
        for place in lacking:  # as it was, unless somebody uses it by now
            with suppress(OSError):
                place.rmdir()


def answers_in(found: Mapping[Node, Any]) -> dict[Node, Answers]:
    """Return the answers of the nodes.

    Raises:
        EnvironmentFault: a node did not answer.
    """
    reasons = {
        node: "" if isinstance(told, TimeoutError) else last_line(told)
        for node, told in found.items()
        if isinstance(told, BaseException)
    }
    if reasons:
        names = [node.name for node in reasons]
        raise EnvironmentFault(silence_fault(reasons, answer_seconds()), "node-silent", nodes=names)
    return dict(found)


def _strict(told: Answers) -> tuple[str, ...]:
    return told.python, *(told.versions.get(name, "missing") for name in STRICT[1:])


def _version(told: Answers, name: str) -> str:
    return told.build if name == "torch's build" else told.versions.get(name, "")


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
