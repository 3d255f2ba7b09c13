"""A Ray cluster of two hosts, which asks for a token."""

from collections.abc import Iterator

import pytest

from support.cluster.hosts import missing
from support.cluster.two_hosts import TwoHosts, ray_on_two_hosts


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    if reason := missing():
        pytest.skip(reason)
    with ray_on_two_hosts(tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster
