"""How long kazoo sees no answer when the node that leads is killed.

Usage: lockkeeper dev --zookeeper -- PYTHON failover.py ROUNDS     Lockkeeper
       PYTHON failover.py ROUNDS                                   ZooKeeper itself

A kazoo client at a node that does not lead creates and deletes an ephemeral node again and again; the gap around a death is the longest
time between two of its answers. Sessions must not end.
"""

import statistics
import sys
import tempfile
import threading
import time

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError, OperationTimeoutError, SessionExpiredError

import cluster as clusters


class Pairs:
    """A client that works until it is told to end, and when it had its answers."""

    def __init__(self, connect):
        self.client = KazooClient(connect, timeout=20, connection_retry={"max_tries": -1, "max_delay": 0.05, "delay": 0.01})
        self.client.start(60)
        self.lost, self.answers, self.over = 0, [], False
        self.client.add_listener(self.hear)
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def hear(self, state):
        self.lost += state == KazooState.LOST

    def work(self):
        while not self.over:
            try:
                self.client.create("/failover", b"", ephemeral=True)
                self.client.delete("/failover")
                self.answers.append(time.monotonic())
            except (NodeExistsError, NoNodeError):
                # A call whose answer was lost had taken effect.
                self.client.retry(self.client.delete, "/failover") if self.client.exists("/failover") else None
            except (ConnectionLoss, OperationTimeoutError, SessionExpiredError):
                time.sleep(0.005)

    def gap_after(self, died):
        """From the last answer before until the first one after."""
        after = clusters.wait_for("an answer", lambda: [at for at in self.answers if at > died + 0.001])
        return after[0] - max(at for at in self.answers if at <= died)

    def end(self):
        self.over = True
        self.thread.join(60)
        self.client.stop()


def main():
    clusters.end_well_when_told()
    with tempfile.TemporaryDirectory() as directory:
        cluster = clusters.start(directory)
        gaps, lost = [], 0
        try:
            for _ in range(int(sys.argv[1])):
                leads = cluster.leader()
                # It outlives the leader: what is seen is the election, not a new connection.
                pairs = Pairs(next(node.endpoint for node in cluster.nodes if node is not leads))
                clusters.wait_for("a hundred pairs", lambda pairs=pairs: len(pairs.answers) > 100)
                leads.kill()
                died = time.monotonic()
                time.sleep(0.2)
                gaps.append(pairs.gap_after(died) * 1000)
                lost += pairs.lost
                pairs.end()
                leads.start()
                cluster.until_it_serves()
        finally:
            cluster.stop()
    shown = ", ".join(f"{gap:.0f}" for gap in sorted(gaps))
    print(f"{cluster.name}: gap in kazoo's answers, ms: {shown}; median {statistics.median(gaps):.0f}; {lost} sessions lost", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
