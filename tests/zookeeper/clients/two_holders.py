"""Stories in which ZooKeeper's clients have had two holders, told again on a cluster.

Usage: lockkeeper dev --zookeeper -- PYTHON two_holders.py ROUNDS     Lockkeeper
       PYTHON two_holders.py ROUNDS                                   ZooKeeper itself

Two programs with Curator take part: `latch` (LeaderLatch: curator#1137, #1169, #1211) and `retake` (InterProcessMutex whose holder gives it
back when it hears of a lost connection, and queues again: curator#1121). Then one of these happens:

* `stand_still`: all nodes stand still for longer than the session lives,
* `restart`: all nodes are down for longer than the session lives: clients give it up by themselves, while the cluster that comes back gives
  it its time again,
* `leader`: the node that leads is killed, and comes back,
* `holder`: the holder's process stands still for longer than its session.

Wanted is that, once all has been quiet for a while, one program is in, and that it is not two. What a program believes shows in its lines.
Exit code: 1 if Lockkeeper had two where the client leaves it a choice.
"""

import os
import signal
import sys
import tempfile
import time

from kazoo.client import KazooClient

import cluster as clusters
from run import Program, report

SESSION_SECONDS = 4.0
# Curator gives a session up by its own clock before the server does, opens another one, and takes the node of the first for its own. The
# server cannot know that the two are of one client.
OF_THE_CLIENT = {("latch", "restart"), ("latch", "stand_still")}
# How long all must be quiet: a dead session's node is gone by then.
QUIET_SECONDS = 3 * SESSION_SECONDS


def is_in(program):
    words = [line for _, line in list(program.lines) if line in ("in", "out")]
    return bool(words) and words[-1] == "in"


def restart(cluster, programs):
    for node in cluster.nodes:
        node.kill()
    time.sleep(1.6 * SESSION_SECONDS)
    for node in cluster.nodes:
        node.start()


def stand_still(cluster, programs):
    for node in cluster.nodes:
        os.kill(node.pid, signal.SIGSTOP)
    time.sleep(1.6 * SESSION_SECONDS)
    for node in cluster.nodes:
        os.kill(node.pid, signal.SIGCONT)


def leader(cluster, programs):
    node = cluster.leader()
    node.kill()
    clusters.wait_for("another leader", lambda: any(other.mode() == "leader" for other in cluster.nodes))
    node.start()


def holder(cluster, programs):
    stopped = next(program for program in programs if is_in(program))
    stopped.process.send_signal(signal.SIGSTOP)
    time.sleep(1.6 * SESSION_SECONDS)
    stopped.process.send_signal(signal.SIGCONT)


def settle(programs):
    """How many are in, when nothing has changed for a while, or after a minute."""
    began = time.monotonic()
    while time.monotonic() < began + 60:
        times = [at for program in programs for at, _ in list(program.lines)]
        if time.monotonic() > max([began, *times]) + QUIET_SECONDS:
            break
        time.sleep(0.1)
    return sum(map(is_in, programs))


def tell(cluster, observer, mode, happens, rounds):
    path = f"/two-{mode}-{happens.__name__}"
    observer.ensure_path(path)
    programs = [Program("curator", mode, cluster.connect, path) for _ in range(2)]
    counts = []
    try:
        for program in programs:
            program.wait_for("takes", 1)
        for _ in range(rounds):
            clusters.wait_for("one is in", lambda: any(map(is_in, programs)))
            happens(cluster, programs)
            cluster.until_it_serves()
            counts.append(settle(programs))
            if counts[-1] == 2:
                left = observer.retry(observer.get_children, path)
                print(f"       both are in; the nodes there: {left}", flush=True)
                break
    finally:
        for program in programs:
            program.process.kill()
            program.end()
    is_good = counts.count(1) == len(counts)
    report(is_good, f"{mode}, {happens.__name__}: in {len(counts)} rounds {counts.count(2)} with two, {counts.count(0)} with none")
    return is_good


def main():
    clusters.end_well_when_told()
    rounds = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        cluster = clusters.start(directory)
        print(cluster.name, flush=True)
        observer = KazooClient(cluster.connect, timeout=30, connection_retry={"max_tries": -1, "max_delay": 0.5})
        observer.start(60)
        is_good = True
        try:
            for mode in ("latch", "retake"):
                for happens in (restart, stand_still, leader, holder):
                    try:
                        told = tell(cluster, observer, mode, happens, rounds)
                        is_good &= told or (mode, happens.__name__) in OF_THE_CLIENT
                    except AssertionError as error:
                        is_good = report(False, f"{mode}, {happens.__name__}: {error}")
            observer.stop()
        finally:
            cluster.stop()
    # What ZooKeeper does is shown, not judged.
    return 0 if is_good or cluster.name == "ZooKeeper" else 1


if __name__ == "__main__":
    sys.exit(main())
