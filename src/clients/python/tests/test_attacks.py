"""What goes wrong around a client: processes that stop and fork, interruptions, a busy interpreter, nodes that hang, wrong certificates."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from conftest import LONG, until

import lockkeeper
import lockkeeper.testing

# Each attack is a program of its own. It says what it sees, a line each, and reads a line where it waits for the test.
PRELUDE = r"""
import os, re, signal, sys, threading, time
import lockkeeper
# Where the tests run in the background of a shell, they and their children ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
def say(*words):
    # In one piece: other threads say something too.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()
"""


class Program:
    """A program that a test starts, and ends."""

    def __init__(self, cluster: lockkeeper.testing.Cluster, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + text],
            env={**os.environ, **cluster.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ends(self) -> int:
        return self.process.wait(LONG)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def test_a_process_that_was_stopped_beyond_the_ttl_finds_its_lock_lost(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client
) -> None:
    text = """
with lockkeeper.connect(ttl=1) as client:
    lock = client.lock("a", on_lost=lambda loss: say("told", loss.reason.value)).acquire()
    say("held", lock.token)
    sys.stdin.readline()
    say(lock.remaining, lock.loss.reason.value)
    try:
        lock.release()
    except lockkeeper.Lost as lost:
        say(lost.loss.reason.value)
    with client.lock("b") as other:
        say("goes on", other.token)
"""
    with Program(cluster, text) as program:
        held = int(program.line().removeprefix("held "))
        os.kill(program.process.pid, signal.SIGSTOP)
        with client.lock("a", wait=LONG) as mine:
            assert mine.token > held
        program.tell()
        os.kill(program.process.pid, signal.SIGCONT)
        # The thread that tells and the one that reads race; each says the same.
        said = sorted(program.line() for _ in range(3))
        reasons = {word for line in said for word in line.split() if word not in ("told", "0.0")}
        assert reasons <= {"out-of-contact", "expired"}, said
        assert sum(line.startswith("told") for line in said) == 1, said
        assert program.line().startswith("goes on")
        assert program.ends() == 0


def test_an_interpreter_that_was_too_busy_to_renew_says_that_the_lock_is_lost(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client
) -> None:
    # A match that backtracks holds the interpreter's lock for all its time: no other thread runs.
    text = """
def hog(seconds):
    began = time.monotonic()
    size = 18
    while True:
        one = time.monotonic()
        re.match("(a+)+$", "a" * size + "b")
        took = time.monotonic() - one
        if took >= seconds:
            return
        size += 1
client = lockkeeper.connect(ttl=2)
with client.lock("warm"):
    pass
try:
    with client.lock("a") as lock:
        say("held", lock.token)
        hog(2.2)
        left, loss = lock.remaining, lock.loss
        say(left, loss and loss.reason.value)
        lock.raise_if_lost()
        say("trusted")
except lockkeeper.Lost as lost:
    say("lost", lost.loss.reason.value)
client.close()
"""
    with Program(cluster, text) as program:
        assert program.line().startswith("held")
        left, reason = program.line().split()
        assert (float(left), reason) == (0.0, "out-of-contact")
        assert program.line() == "lost out-of-contact"
        assert program.ends() == 0


def test_threads_that_compute_do_not_starve_the_renewals(cluster: lockkeeper.testing.Cluster) -> None:
    text = """
over = False
def compute():
    while not over:
        sum(range(1000))
threads = [threading.Thread(target=compute) for _ in range(4)]
client = lockkeeper.connect(ttl=6)
with client.lock("a") as lock:
    for thread in threads:
        thread.start()
    end = time.monotonic() + 8
    while time.monotonic() < end:
        lock.raise_if_lost()
        time.sleep(0.05)
    over = True
client.close()
say("held all along")
"""
    with Program(cluster, text) as program:
        assert program.line() == "held all along"
        assert program.ends() == 0


def test_a_fork_while_holding_leaves_the_lock_with_the_parent(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client
) -> None:
    text = """
client = lockkeeper.connect()
lock = client.lock("a").acquire()
say("held", lock.token)
child = os.fork()
if child == 0:
    try:
        with lock:
            say("child", lock.remaining, lock.loss.reason.value)
    except lockkeeper.Lost as lost:
        say("child", lost.loss.reason.value)
    try:
        lock.release()
    except lockkeeper.Lost as lost:
        say("child", lost.loss.reason.value)
    os._exit(0)
os.waitpid(child, 0)
say("parent", lock.remaining > 0, lock.loss)
sys.stdin.readline()
lock.release()
client.close()
"""
    with Program(cluster, text) as program:
        held = int(program.line().removeprefix("held "))
        assert program.line() == "child 0.0 forked"
        assert program.line() == "child forked"
        assert program.line() == "child forked"
        assert program.line() == "parent True None"
        assert client.check("a", held).held
        program.tell()
        assert program.ends() == 0
    assert not client.get("a").is_held


def test_a_client_made_before_a_fork_and_used_after_it_works_in_each_child(
    cluster: lockkeeper.testing.Cluster,
) -> None:
    text = """
client = lockkeeper.connect()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        with client.lock("a", wait=30) as lock:
            say("token", lock.token)
        client.close()
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
say(codes)
with client.lock("a", wait=30) as lock:
    say("token", lock.token)
client.close()
"""
    with Program(cluster, text) as program:
        said = [program.line() for _ in range(4)]
        assert said[2] == "[0, 0]"
        assert len({line for line in said if line.startswith("token")}) == 3
        assert program.ends() == 0


@pytest.mark.parametrize("wait", ["None", "300"])
def test_an_interrupt_while_waiting_leaves_no_wait_and_no_grant(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client, wait: str
) -> None:
    text = f"""
client = lockkeeper.connect()
try:
    say("waits")
    client.lock("a", wait={wait}).acquire()
except KeyboardInterrupt:
    say("interrupted")
sys.stdin.readline()
with client.lock("b") as lock:
    say("goes on")
client.close()
"""
    with client.lock("a"), Program(cluster, text) as program:
        assert program.line() == "waits"
        until("it waits", lambda: client.get("a").queue_length == 1)
        os.kill(program.process.pid, signal.SIGINT)
        assert program.line() == "interrupted"
        until("it waits no more", lambda: client.get("a").queue_length == 0)
        program.tell()
        assert program.line() == "goes on"
        assert program.ends() == 0


def test_interrupts_at_any_moment_leave_nothing_held(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client
) -> None:
    text = """
client = lockkeeper.connect()
with client.lock("warm"):
    pass
def alarm(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, alarm)
interrupted = 0
for turn in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + turn * 0.0001)
        while True:
            with client.lock("a", wait=(0, 5)[turn % 2]):
                pass
    except KeyboardInterrupt:
        interrupted += 1
    except lockkeeper.NotAcquired:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
with client.lock("b") as lock:
    say(interrupted > 100, lock.remaining > 0)
sys.stdin.readline()
client.close()
say([thread.name for thread in threading.enumerate()])
"""
    with Program(cluster, text) as program:
        assert program.line() == "True True"
        until("it is free", lambda: not client.get("a").is_held and client.get("a").queue_length == 0)
        program.tell()
        assert program.line() == "['MainThread']"
        assert program.ends() == 0


def test_a_program_that_ends_without_closing_leaves_nothing_held(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client
) -> None:
    text = """
client = lockkeeper.connect(ttl=600)
lock = client.lock("a").acquire()
say(lock.token)
"""
    with Program(cluster, text) as program:
        token = int(program.line())
        assert program.ends() == 0
        assert not client.check("a", token).held


def test_a_node_that_hangs_is_left_for_the_next_one() -> None:
    with lockkeeper.testing.cluster() as cluster, cluster.connect(attempt_limit=0.5, ttl=6) as client:
        with client.lock("a") as lock:
            pass
        session = lock.session_id
        hung = cluster.nodes[0].pid
        os.kill(hung, signal.SIGSTOP)
        try:
            for turn in range(3):
                with client.lock(f"b{turn}", wait=LONG) as lock:
                    lock.ensure(3)
            assert lock.session_id == session
        finally:
            os.kill(hung, signal.SIGCONT)


def test_a_node_that_accepts_and_never_answers_does_not_hang_a_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with lockkeeper.connect(address, call_limit=1.5, attempt_limit=0.5) as client:
            began = time.monotonic()
            with pytest.raises((lockkeeper.NoCluster, lockkeeper.OutcomeUnknown)):
                client.lock("a", wait=0).acquire()
            assert time.monotonic() - began < 10


def test_a_node_that_dies_under_a_wait_does_not_lose_its_place() -> None:
    with lockkeeper.testing.cluster() as cluster, cluster.connect() as holder, cluster.connect() as client:
        got: list[lockkeeper.Lock] = []
        lock = holder.lock("a").acquire()
        thread = threading.Thread(target=lambda: got.append(client.lock("a").acquire()))
        thread.start()
        until("it waits", lambda: holder.get("a").queue_length == 1)
        os.kill(cluster.nodes[0].pid, signal.SIGKILL)
        os.kill(cluster.nodes[0].pid, 0)
        holder.get("a")
        lock.release()
        thread.join(LONG)
        assert not got[0].place_lost
        got[0].release()


@pytest.fixture(scope="module")
def secure() -> Iterator[lockkeeper.testing.Cluster]:
    with lockkeeper.testing.cluster(nodes=1, tls=True) as cluster:
        yield cluster


def test_tls_with_the_clusters_certificates(
    secure: lockkeeper.testing.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secure.connect() as client, client.lock("a") as lock:
        assert lock.remaining > 0
    for name, value in secure.environment.items():
        monkeypatch.setenv(name, value)
    with lockkeeper.connect() as client:
        assert not client.get("a").is_held


def test_a_wrong_authority_is_said_with_what_to_check(
    secure: lockkeeper.testing.Cluster, cluster: lockkeeper.testing.Cluster
) -> None:
    with lockkeeper.testing.cluster(nodes=1, tls=True) as other:
        wrong = {"ca": other.environment["LOCKKEEPER_CA"], "cert": None, "key": None}
        with (
            secure.connect(**wrong, call_limit=2) as client,
            pytest.raises(lockkeeper.NoCluster, match="LOCKKEEPER_CA"),
        ):
            client.get("a")
    ca = secure.environment["LOCKKEEPER_CA"]
    with lockkeeper.connect(cluster.endpoints, ca=ca, call_limit=2) as client:
        with pytest.raises(lockkeeper.NoCluster, match="speaks no TLS"):
            client.get("a")
    with (
        lockkeeper.connect(re.sub("https://", "", secure.endpoints), call_limit=2) as client,
        pytest.raises(lockkeeper.Error),
    ):
        client.get("a")
    with pytest.raises(lockkeeper.InvalidArgument, match="cannot read"):
        lockkeeper.connect(ca="/no/such/file")
