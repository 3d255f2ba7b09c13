"""The parts of `paceline doctor --address` that need no cluster."""

from paceline.cluster.cluster_doctor import _exchange_check
from paceline.cluster.network import Exchange, interface_of, megabits, processes_on
from paceline.cluster.node_probe import nvlinks
from paceline.cluster.nodes import Node
from paceline.cluster.placement import Room
from support.golden import Golden

FOUR_OF_A_DGX = """
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPHB\tSYS\t0-31\t0
GPU1\tNV12\t X \tSYS\tPHB\t0-31\t0
GPU2\tPHB\tSYS\t X \tNV12\t32-63\t1
GPU3\tSYS\tPHB\tNV12\t X \t32-63\t1

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def node(name: str, gpus: float) -> Node:
    return Node(name, f"10.0.0.{name}", Room(8, gpus), Room(8, gpus), name=name)


def test_bus_bandwidth_is_that_of_nccl_tests(golden: Golden) -> None:
    found = Exchange(size=8_000_000, seconds=0.002, processes=4)
    assert found.algorithm == 4e9
    assert found.bus == 6e9
    check = _exchange_check("nccl", found)
    assert check.values["bus_bytes_per_second"] == 6e9
    golden(check.detail)


def test_one_process_a_gpu_or_a_node() -> None:
    one, two = node("1", 2), node("2", 1)
    assert processes_on([one, two, node("3", 0)]) == ("nccl", [one, one, two])
    assert processes_on([two, node("3", 0)]) == ("gloo", [two, node("3", 0)])
    assert processes_on([node("3", 0)]) == ("gloo", [node("3", 0)] * 2)


def test_nvlinks_are_counted_in_the_drivers_table() -> None:
    assert nvlinks(FOUR_OF_A_DGX) == 4
    assert nvlinks(FOUR_OF_A_DGX.replace("NV12", "PIX")) == 0
    assert nvlinks("") is None
    assert nvlinks("GPU0 has failed") is None


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
    assert megabits("no-such-interface") is None
