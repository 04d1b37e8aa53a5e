"""kazoo's own tests, as its package has them, on a cluster of three nodes.

Usage: lockkeeper dev --zookeeper -- PYTHON kazoo_tests.py [PYTEST'S ARGUMENT…]     Lockkeeper
       PYTHON kazoo_tests.py [PYTEST'S ARGUMENT…]                                    ZooKeeper itself

Left out, each with its reason, is what kazoo's tests ask of their own servers and not of the protocol.
"""

import pathlib
import sys
import tempfile
import unittest.mock

# What the harness makes certificates with for servers of its own.
for module in ("OpenSSL", "OpenSSL.crypto", "jks"):
    sys.modules[module] = unittest.mock.MagicMock()

import kazoo.testing.harness as harness  # noqa: E402
import pytest  # noqa: E402

import cluster as clusters  # noqa: E402

# Parts of the names of tests, and why they cannot run here.
LEFT_OUT = {
    "TestSSLClient": "starts servers with certificates of its own",
    "TestReadOnlyMode": "stops two of its servers, for the read-only mode",
    "test_sasl": "starts servers with SASL",
    "TestReconfig": "changes who ZooKeeper's servers are, which is refused here",
    "test_create_large_value": "half a megabyte: a node has 400 KiB at the most",
}


class RunningServer:
    """A node, as kazoo's harness sees one of its servers."""

    running = True

    def __init__(self, address):
        self.address = self.secure_address = address

    def run(self):
        pytest.skip("the test starts a server")

    def stop(self):
        pytest.skip("the test stops a server")


class RunningCluster(list):
    """The nodes. They are neither started nor stopped by a test."""

    def start(self):
        pass

    def terminate(self):
        pass

    def get_logs(self):
        return []


def main():
    clusters.end_well_when_told()
    with tempfile.TemporaryDirectory() as directory:
        cluster = clusters.start(directory)
        print(f"{cluster.name}: {cluster.connect}", flush=True)
        running = RunningCluster(RunningServer(address) for address in cluster.connect.split(","))
        harness.get_global_cluster = lambda: running
        tests = pathlib.Path(harness.__file__).parents[1] / "tests"
        without = " and ".join(f"not {part}" for part in LEFT_OUT)
        arguments = sys.argv[1:] or [str(tests)]
        try:
            return pytest.main(["-q", "-p", "no:cacheprovider", "-k", without, "--rootdir", directory, *arguments])
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
