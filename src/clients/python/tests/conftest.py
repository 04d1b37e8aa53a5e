"""What the tests share: a cluster for all of them, and waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points

import pytest

import lockkeeper
import lockkeeper.testing

LONG = 60.0
"""Longer than any step on a busy machine: a test that waits for this time has failed."""

# A wheel brings its fixtures by its entry point; a checkout in the search path has none.
IS_INSTALLED = any(point.name == "lockkeeper" for point in entry_points(group="pytest11"))
pytest_plugins = [] if IS_INSTALLED else ["lockkeeper.testing.plugin"]


@pytest.fixture
def cluster(lockkeeper_cluster: lockkeeper.testing.Cluster) -> lockkeeper.testing.Cluster:
    return lockkeeper_cluster


@pytest.fixture
def client(lockkeeper_client: lockkeeper.Client) -> lockkeeper.Client:
    return lockkeeper_client


@pytest.fixture
def short(cluster: lockkeeper.testing.Cluster) -> Iterator[lockkeeper.Client]:
    """A client whose locks are over soon without a renewal."""
    with cluster.connect(ttl=4) as client:
        yield client


def until(what: str, condition: Callable[[], object], limit: float = LONG) -> None:
    """Waits for a condition."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit} s"
        time.sleep(0.005)
