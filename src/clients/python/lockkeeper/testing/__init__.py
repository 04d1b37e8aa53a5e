"""A real cluster for tests: `lockkeeper dev`, ended with the test.

With pytest nothing is to be imported: the package brings the fixtures `lockkeeper_cluster` (one for the whole run) and `lockkeeper_client`.

    def test_nightly(lockkeeper_client):
        with lockkeeper_client.lock("jobs/nightly", wait=0) as lock:
            ...
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .._client import Client, connect
from ..errors import Error

__all__ = ["Cluster", "ClusterFailed", "Node", "cluster"]

PROGRAM = "LOCKKEEPER_PROGRAM"

# It says where the cluster is, and ends with its standard input: so the cluster ends with this process, however that ends.
_HOLD = """
import json, os, sys
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("LOCKKEEPER_")}), flush=True)
sys.stdin.read()
"""


class ClusterFailed(Error):
    """The cluster did not start."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster: its address and its process, for a test that stops or kills it."""

    endpoint: str
    pid: int


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    endpoints: str
    """`host:port` of its nodes, separated by commas."""
    environment: dict[str, str]
    """The variables by which programs find it: `LOCKKEEPER_ENDPOINTS` and others."""
    nodes: tuple[Node, ...] = field(default=())

    def connect(self, **options: object) -> Client:
        """A client of it, with the options of `lockkeeper.connect`."""
        tls = {name: self.environment.get(f"LOCKKEEPER_{name.upper()}") for name in ("ca", "cert", "key")}
        return connect(self.endpoints, **{**tls, **options})  # type: ignore[arg-type]


@contextmanager
def cluster(
    *, nodes: int = 3, tls: bool = False, program: str | os.PathLike[str] | None = None, timeout: float = 60.0
) -> Generator[Cluster]:
    """A cluster of `nodes` on free ports of this machine, with new data, until the end of the `with`.

    `program`: the program `lockkeeper`; by default what `LOCKKEEPER_PROGRAM` names, or the one of the search path. `timeout`: for the
    start, seconds. Fails with `ClusterFailed`.

    As a fixture of one's own:

        @pytest.fixture(scope="session")
        def cluster():
            with lockkeeper.testing.cluster(nodes=1) as cluster:
                yield cluster

    >>> with lockkeeper.testing.cluster(nodes=1) as cluster, cluster.connect() as client:
    ...     client.get("jobs").is_held
    False
    """
    command = [
        _program(program),
        "dev",
        "--nodes",
        str(nodes),
        "--timeout",
        f"{timeout:.0f}s",
        *(["--tls"] if tls else []),
    ]
    with tempfile.TemporaryDirectory(prefix="lockkeeper-testing-") as folder:
        log = Path(folder) / "dev.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, "--", sys.executable, "-c", _HOLD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        try:
            yield _described(process, log, timeout)
        finally:
            _end(process)


def _program(program: str | os.PathLike[str] | None) -> str:
    wanted = program or os.environ.get(PROGRAM) or "lockkeeper"
    found = shutil.which(wanted)
    if found is None:
        raise ClusterFailed(f"there is no program {os.fspath(wanted)}: install lockkeeper, or name it by {PROGRAM}")
    return found


def _described(process: subprocess.Popen[bytes], log: Path, timeout: float) -> Cluster:
    line = _first_line(process, timeout + 5)
    said = log.read_text(errors="replace")
    if not line.startswith(b"{"):
        raise ClusterFailed(f"the cluster did not start: {said.strip() or line.decode(errors='replace')}")
    environment: dict[str, str] = json.loads(line)
    nodes = re.findall(r"^node \d+ +(\S+) +pid (\d+)$", said, re.MULTILINE)
    endpoints = environment["LOCKKEEPER_ENDPOINTS"]
    return Cluster(endpoints, environment, tuple(Node(endpoint, int(pid)) for endpoint, pid in nodes))


def _first_line(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """What it prints first; what it had printed at the end of the time, if that is less than a line."""
    assert process.stdout is not None
    until = time.monotonic() + timeout
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        part = os.read(process.stdout.fileno(), 65_536) if ready else b""
        if not part:
            return line
        line += part
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()
