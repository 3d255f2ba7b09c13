"""`paceline doctor --address`: every node of a cluster, and the network between them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from paceline.cluster.network import Exchange, measure
from paceline.cluster.node_checks import (
    answer_seconds,
    answers_in,
    dependencies,
    differences,
    file_in,
    software_fault,
    storage_fault,
)
from paceline.cluster.node_probe import NodeFacts, Questions, all_of, answer, facts_of, run_on
from paceline.cluster.nodes import Node, alive_nodes
from paceline.cluster.ray_session import connected
from paceline.errors import EnvironmentFault

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class DoctorCheck:
    """Result of one check."""

    name: str
    """Name of the check, such as `torch`."""
    ok: bool | None
    """True if it passed, False if a run would fail, None if it is worth knowing but prevents nothing."""
    detail: str
    """Result of the check, as text."""
    hint: str = ""
    """Fix to apply; empty when nothing needs to be done."""
    node: str = ""
    """Node of a cluster that the check is about; empty for this machine, or for the cluster as a whole."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Measured values by name, such as `size_bytes`."""


def examine(address: str, storage: str = "") -> list[DoctorCheck]:
    """Connect to a cluster and check all of it; takes up to about 30 s.

    Args:
        address: as for `train`.
        storage: folder of the runs, which all nodes must share, or an address; empty: it is not checked.
    """
    from paceline.cluster.user_code import runtime_env  # imports the schema of configs

    with ExitStack() as stack:
        try:
            stack.enter_context(connected(address, runtime_env([])))
        except EnvironmentFault as fault:
            return [DoctorCheck("ray cluster", False, fault.message, "correct the address, or start the cluster")]
        nodes = alive_nodes()
        return [*_check_nodes(nodes, storage), *_exchange(nodes)]


def _check_nodes(nodes: Sequence[Node], storage: str) -> list[DoctorCheck]:
    packages = dependencies()
    try:
        with file_in(storage) as token:
            questions = Questions(packages, storage, token)
            # each in a process of its own, which ends with it: torch may have taken hold of GPUs there
            tasks = [run_on(node.id, facts_of, questions, node.id, node.address, max_calls=1) for node in nodes]
            found: dict[Node, Any] = dict(zip(nodes, all_of(tasks, answer_seconds()), strict=True))
            facts = {node: told for node, told in found.items() if not isinstance(told, BaseException)}
            answers = {node: told.answers for node, told in facts.items()}
            shared = storage_fault(answers, storage, token)
    except EnvironmentFault as fault:
        return [DoctorCheck("storage", False, fault.message, "name a folder that can be written to")]
    checks = [check for node, told in facts.items() for check in _node_checks(node, told)]
    return [*checks, *_silent(found), *_software(packages, answers), *_storage(storage, shared)]


def _node_checks(node: Node, facts: NodeFacts) -> list[DoctorCheck]:
    versions, build = facts.answers.versions, facts.answers.build
    torch = f"torch {versions.get('torch', 'missing')}{f' ({build})' if build else ''}"
    software = f"Python {facts.answers.python}, Ray {versions.get('ray', 'missing')}, {torch}"
    details = {
        "software": software,
        "gpus": facts.gpus,
        "machine": facts.machine,
        "disk": facts.disk,
        "network": facts.network,
    }
    return [DoctorCheck(name, True, detail, node=node.name) for name, detail in details.items()]


def _silent(found: Mapping[Node, Any]) -> list[DoctorCheck]:
    hint = "look there for a full disk, too little memory or a Ray that hangs"
    return [
        DoctorCheck("answer", False, _reason(node, told), hint, node=node.name)
        for node, told in found.items()
        if isinstance(told, BaseException)
    ]


def _reason(node: Node, told: BaseException) -> str:
    try:
        answers_in({node: told})
    except EnvironmentFault as fault:
        return fault.message.partition(": look there")[0]
    return ""


def _software(packages: tuple[str, ...], answers: Mapping[Node, Any]) -> list[DoctorCheck]:
    own = answer(Questions(packages))
    if fault := software_fault(own, answers):
        return [DoctorCheck("same software", False, fault, "install the same versions everywhere")]
    told = differences(own, answers)
    detail = "; ".join(told) or "as in this process, on all nodes"
    return [DoctorCheck("same software", None if told else True, detail)]


def _storage(storage: str, fault: str) -> list[DoctorCheck]:
    if not storage:
        return []
    if fault:
        return [DoctorCheck("shared storage", False, fault)]
    return [DoctorCheck("shared storage", True, f"{storage} is the same on all nodes")]


def _exchange(nodes: Sequence[Node]) -> list[DoctorCheck]:
    try:
        backend, found = measure(nodes)
    except EnvironmentFault as fault:
        hint = "let the nodes reach each other on all ports, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME there"
        return [DoctorCheck("all-reduce", False, fault.message, hint)]
    return [_exchange_check(backend, each) for each in found]


def _exchange_check(backend: str, found: Exchange) -> DoctorCheck:
    detail = (
        f"bus bandwidth {found.bus / 1e9:.3g} GB/s ({found.algorithm / 1e9:.3g} GB/s x 2 (n - 1) / n), "
        f"{found.seconds * 1000:.3g} ms, {backend}, n = {found.processes} processes"
    )
    values = {
        "size_bytes": float(found.size),
        "seconds": found.seconds,
        "processes": float(found.processes),
        "algorithm_bytes_per_second": found.algorithm,
        "bus_bytes_per_second": found.bus,
    }
    return DoctorCheck(f"all-reduce {_size_text(found.size)}", True, detail, values=values)


def _size_text(size: int) -> str:
    unit, name = next(((unit, name) for unit, name in UNITS if size >= unit), (1, "bytes"))
    return f"{size / unit:g} {name}"
