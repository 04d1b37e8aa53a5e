"""The fixtures that the package brings to pytest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .. import Client
    from . import Cluster


@pytest.fixture(scope="session")
def lockkeeper_cluster() -> Iterator[Cluster]:
    """A cluster for the whole run. It needs the program `lockkeeper`."""
    from . import cluster

    with cluster() as running:
        yield running


@pytest.fixture
def lockkeeper_client(lockkeeper_cluster: Cluster) -> Iterator[Client]:
    """A client of that cluster, closed after the test: what the test left held is free then."""
    with lockkeeper_cluster.connect() as client:
        yield client
