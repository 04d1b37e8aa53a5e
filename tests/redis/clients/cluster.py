"""The nodes of the cluster that `lockkeeper dev --redis -- PROGRAM` has started for this program: who leads, deaths, returns."""

import os
import pathlib
import signal
import socket
import subprocess
import time
import tomllib

# A bound on failures, seconds.
PATIENCE = 60


class Node:
    def __init__(self, pid, command):
        self.pid, self.command, self.process = pid, command, None
        config = tomllib.loads(pathlib.Path(command[command.index("--config") + 1]).read_text())
        self.endpoint = config["redis"]["listen"]

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def restart(self):
        """It ends with this program, which holds its input."""
        log = subprocess.DEVNULL
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        self.pid = self.process.pid
        wait_for(f"node at {self.endpoint}", lambda: ask(self.endpoint, b"GET", b"none") == [None])


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.1)
    return value


def nodes():
    """All of them, as children of the process that has started this one."""
    found = []
    for directory in pathlib.Path("/proc").iterdir():
        try:
            is_child = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getppid()
            command = (directory / "cmdline").read_bytes().decode().split("\0")[:-1]
        except (OSError, IndexError, ValueError):
            continue
        if is_child and "serve" in command:
            # By its file, since the command's own name is no path.
            command[0] = os.readlink(directory / "exe")
            found.append(Node(int(directory.name), command))
    assert len(found) == 3, found
    return found


def ask(endpoint, *command):
    """The texts of a reply, nil as None; None if there is no reply, or an error."""
    host, port = endpoint.rsplit(":", 1)
    request = b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
    try:
        with socket.create_connection((host, int(port)), timeout=2) as stream, stream.makefile("rb") as replies:
            stream.sendall(request)
            head = replies.readline()
            count = int(head[1:]) if head[:1] == b"*" else 1
            texts = []
            for _ in range(count):
                head = replies.readline() if head[:1] == b"*" or texts else head
                if head[:1] != b"$":
                    return None
                texts.append(None if head == b"$-1\r\n" else replies.readline().strip().decode())
            return texts
    except (OSError, ValueError):
        return None


def leader(nodes):
    """The node that leads, as those that live say."""

    def known():
        for node in nodes:
            reply = ask(node.endpoint, b"SENTINEL", b"get-master-addr-by-name", b"mymaster")
            if reply and len(reply) == 2:
                named = [other for other in nodes if other.endpoint == ":".join(reply)]
                # One that has died is named until another one leads.
                if named and ask(named[0].endpoint, b"GET", b"none") == [None]:
                    return named[0]
        return None

    return wait_for("a leader", known)
