"""A cluster of three nodes that serve ZooKeeper's protocol: who leads, deaths, returns.

Lockkeeper's is started by `lockkeeper dev --zookeeper -- PROGRAM`; ZooKeeper's own, three servers of Debian's package, by this module.
Programs of clients are the same for both.
"""

import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib

# A bound on failures, seconds.
PATIENCE = 90
JARS = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def end_well_when_told():
    """A signal to end ends what was started, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def wait_for(what, condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)
    return value


class Node:
    """A server of its own process. One that this program has started ends with it."""

    def __init__(self, endpoint, command, pid=None):
        self.endpoint, self.command, self.pid, self.process = endpoint, command, pid, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, **SILENT)
        self.pid = self.process.pid

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        if self.process:
            self.process.wait()

    def word(self, word):
        """The answer to a word of four letters, or nothing."""
        host, port = self.endpoint.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=2) as stream:
                stream.sendall(word.encode())
                stream.settimeout(2)
                answer = b""
                while part := stream.recv(4096):
                    answer += part
                return answer.decode()
        except OSError:
            return ""

    def mode(self):
        lines = [line for line in self.word("srvr").splitlines() if line.startswith("Mode: ")]
        return lines[0].removeprefix("Mode: ") if lines else None


class Cluster:
    def __init__(self, name, nodes):
        self.name, self.nodes = name, nodes
        self.connect = ",".join(node.endpoint for node in nodes)

    def serves(self):
        modes = [node.mode() for node in self.nodes]
        return modes.count("leader") == 1 and None not in modes

    def until_it_serves(self):
        wait_for("three nodes that serve, of which one leads", self.serves)

    def leader(self):
        return wait_for("a leader", lambda: next((node for node in self.nodes if node.mode() == "leader"), None))

    def stop(self):
        for node in self.nodes:
            if node.process:
                node.kill()


def lockkeeper():
    """The nodes that `lockkeeper dev` has started beside this program: children of the same process."""
    nodes = []
    for directory in pathlib.Path("/proc").iterdir():
        try:
            is_child = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getppid()
            command = (directory / "cmdline").read_bytes().decode().split("\0")[:-1]
        except (OSError, IndexError, ValueError):
            continue
        if is_child and "serve" in command:
            # By its file, since the command's own name is no path.
            command[0] = os.readlink(directory / "exe")
            config = tomllib.loads(pathlib.Path(command[command.index("--config") + 1]).read_text())
            nodes.append(Node(config["zookeeper"]["listen"], command, int(directory.name)))
    assert len(nodes) == 3, nodes
    return Cluster("Lockkeeper", nodes)


def free_ports():
    """Below those that the system gives to clients: one of them could take the port of a server that is down for a while."""
    ports = list(range(15_000, 32_000))
    random.shuffle(ports)
    for port in ports:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        yield port


def zookeeper(directory):
    """Three servers of ZooKeeper. Ticks of a second, so that a session may be as short as with Lockkeeper."""
    ports = [port for port, _ in zip(free_ports(), range(9))]
    members = "".join(f"server.{n + 1}=127.0.0.1:{ports[n * 3 + 1]}:{ports[n * 3 + 2]}\n" for n in range(3))
    nodes = []
    for n in range(3):
        data = pathlib.Path(directory) / f"zookeeper-{n + 1}"
        data.mkdir()
        (data / "myid").write_text(f"{n + 1}\n")
        (data / "zoo.cfg").write_text(
            "tickTime=1000\ninitLimit=20\nsyncLimit=10\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
            f"maxSessionTimeout=40000\nextendedTypesEnabled=true\ndataDir={data}\n"
            f"clientPort={ports[n * 3]}\nclientPortAddress=127.0.0.1\n{members}"
        )
        java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", JARS, "-Dzookeeper.extendedTypesEnabled=true"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        nodes.append(Node(f"127.0.0.1:{ports[n * 3]}", [*java, main, str(data / "zoo.cfg")]))
    for node in nodes:
        node.start()
    return Cluster("ZooKeeper", nodes)


def start(directory=None):
    """The cluster under test: Lockkeeper's if `lockkeeper dev` has started this program, else ZooKeeper's."""
    cluster = lockkeeper() if os.environ.get("ZOOKEEPER_CONNECT") else zookeeper(directory or tempfile.mkdtemp())
    try:
        cluster.until_it_serves()
    except AssertionError:
        cluster.stop()
        raise
    return cluster
