"""All clients on a cluster of three nodes: recipes, contention while leaders die, holders that die or stand still.

Usage: lockkeeper dev --zookeeper -- PYTHON run.py SECONDS [CLIENT…]     Lockkeeper
       PYTHON run.py SECONDS [CLIENT…]                                   ZooKeeper itself: shows that the programs are right

`PROGRAMS` names the directory of compiled programs and packages; a client whose program is missing is skipped, and named. Exit code: 1 if
one failed.
"""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from kazoo.client import KazooClient

import cluster as clusters

HERE = pathlib.Path(__file__).parent
PROGRAMS = pathlib.Path(os.environ.get("PROGRAMS", "/nonexistent"))
JARS = "zookeeper zookeeper-jute curator-client curator-framework curator-recipes guava slf4j-api slf4j-nop snappy-java metrics-core netty-all"
JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
CLASSES = ":".join([str(PROGRAMS / "curator"), *(f"/usr/share/java/{jar}.jar" for jar in JARS.split())])
PYTHON = [sys.executable, "-B"]
# The program of each client, what must exist for it, and its modes.
CLIENTS = {
    "kazoo": ([*PYTHON, "kazoo_client.py"], None, "recipes contend hold"),
    "tooz": ([*PYTHON, "kazoo_client.py"], None, "recipes contend"),
    # Of two that contend, both stand still for good after a death of ZooKeeper's own nodes.
    "aiozk": ([*PYTHON, "aiozk_client.py"], None, "recipes calm"),
    "curator": ([*JAVA, CLASSES, "Curator"], PROGRAMS / "curator/Curator.class", "recipes contend hold"),
    "c": ([str(PROGRAMS / "client-c")], PROGRAMS / "client-c", "recipes contend hold"),
    "go-zookeeper": ([str(PROGRAMS / "client-go")], PROGRAMS / "client-go", "recipes contend hold"),
    "node-zookeeper-client": (["node", "npm_client.cjs"], PROGRAMS / "node_modules/node-zookeeper-client", "recipes contend hold"),
}
# How many contend at the same time: each is two processes.
TOGETHER = 3
# What `hold` asks for, seconds.
HOLD_SECONDS = 4.0
# A bound on failures, seconds.
PATIENCE = 120


class Program:
    """A client's program that runs: its lines as they come, with the time."""

    def __init__(self, name, mode, *arguments):
        command, _, _ = CLIENTS[name]
        environment = {**os.environ, "NODE_PATH": str(PROGRAMS / "node_modules")}
        self.name, self.errors, self.lines = name, tempfile.TemporaryFile("w+"), []
        self.process = subprocess.Popen(
            [*command, name, mode, *arguments],
            cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment,
        )  # fmt: skip
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.strip()))

    def said(self, word):
        return [(at, line) for at, line in list(self.lines) if line.split(" ")[0] == word]

    def wait_for(self, word, count=1):
        def found():
            assert self.process.poll() is None or len(self.said(word)) >= count, f"{self.name} has ended: {self.trouble()}"
            return len(self.said(word)) >= count

        clusters.wait_for(f"{count} × {word} of {self.name}", found, PATIENCE)
        return self.said(word)[count - 1]

    def trouble(self):
        self.errors.seek(0)
        return "\n".join([*(line for _, line in list(self.lines)[-20:]), self.errors.read()[-3000:]])

    def end(self):
        """Whether it ends well when its input does."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            return self.process.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join(10)


def report(is_good, what):
    print(f"{'ok    ' if is_good else 'FAILED'} {what}", flush=True)
    return is_good


def recipes(cluster, name):
    program = Program(name, "recipes", cluster.connect, f"/recipes-{name}")
    try:
        code = program.process.wait(PATIENCE * 2)
    except subprocess.TimeoutExpired:
        program.process.kill()
        code = program.process.wait()
    program.reader.join(10)
    done = [line.removeprefix("ok ") for _, line in program.said("ok")]
    is_good = report(code == 0 and len(done) > 1, f"{name}: recipes: {' '.join(done)}")
    if not is_good:
        print(program.trouble(), flush=True)
    return is_good


class Contention:
    """Two processes of a client that take one lock in turns."""

    def __init__(self, cluster, name, directory):
        self.name = name
        file = str(pathlib.Path(directory) / name)
        self.programs = [Program(name, "contend", cluster.connect, f"/contended-{name}", file) for _ in range(2)]

    def tenures(self):
        return [len(program.said("tenure")) for program in self.programs]

    def until_both_enter(self):
        before = self.tenures()
        for place, program in enumerate(self.programs):
            program.wait_for("tenure", before[place] + 3)

    def end(self):
        ended = [program.end() for program in self.programs]
        lines = [line for program in self.programs for _, line in program.lines]
        times = sorted(at for program in self.programs for at, _ in program.said("tenure"))
        gap = max((later - earlier for earlier, later in zip(times, times[1:])), default=0)
        counts = {word: sum(line.startswith(word) for line in lines) for word in ("failed", "lost", "overlap")}
        is_good = all(ended) and not counts["overlap"] and not counts["lost"]
        what = f"{self.tenures()[0]} + {self.tenures()[1]} tenures, longest gap {gap:.1f} s"
        report(is_good, f"{self.name}: contention: {what}, {counts['failed']} errors, {counts['lost']} sessions lost, {counts['overlap']} overlaps")
        if not is_good:
            for program in self.programs:
                print(program.trouble(), flush=True)
        return is_good


def contend(cluster, observer, names, seconds, directory, deaths=True):
    for name in names:
        observer.ensure_path(f"/contended-{name}")
    contentions = [Contention(cluster, name, directory) for name in names]
    is_good = True

    def enter(contention):
        try:
            contention.until_both_enter()
            return True
        except AssertionError as error:
            return report(False, f"{contention.name}: {error}; the nodes: {[node.mode() for node in cluster.nodes]}")

    def all_enter():
        with concurrent.futures.ThreadPoolExecutor(len(contentions)) as threads:
            return all(threads.map(enter, contentions))

    names = ", ".join(names)
    try:
        is_good &= all_enter()
        # The leader, then the others: each client has been at a node that died.
        leads = cluster.leader()
        for node in [leads, *(node for node in cluster.nodes if node is not leads)] if deaths else []:
            node.kill()
            died = time.monotonic()
            is_good &= all_enter()
            print(f"       {names}: all have entered again {time.monotonic() - died:.1f} s after a node's death", flush=True)
            node.start()
            cluster.until_it_serves()
        time.sleep(seconds)
        is_good &= all_enter()
    finally:
        ended = [contention.end() for contention in contentions]
    return is_good and all(ended)


def free(observer, path):
    """Whether nothing is below the path."""
    return not observer.retry(observer.get_children, path)


def hold(cluster, observer, name):
    """A holder that is killed, then one that stands still for longer than its session."""
    path = f"/held-{name}"
    observer.ensure_path(path)
    holder = Program(name, "hold", cluster.connect, path)
    holder.wait_for("held")
    # It has pinged meanwhile: a lock needs no renewal by its holder's hand.
    time.sleep(HOLD_SECONDS * 1.5)
    is_good = not free(observer, path) and not holder.said("lost")
    holder.process.kill()
    died = time.monotonic()
    clusters.wait_for("the dead holder's lock is free", lambda: free(observer, path), PATIENCE)
    took = time.monotonic() - died
    # The last ping is at most a third of the timeout old, or a little more where a client pings late.
    is_good &= took > HOLD_SECONDS * 0.5
    holder.end()
    report(is_good, f"{name}: a dead holder of {HOLD_SECONDS:.0f} s: free {took:.2f} s after kill -9")

    holder = Program(name, "hold", cluster.connect, path)
    holder.wait_for("held")
    holder.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    clusters.wait_for("the standing holder's lock is free", lambda: free(observer, path), PATIENCE)
    took = time.monotonic() - stopped
    is_free_in_time = took > HOLD_SECONDS * 0.5
    holder.process.send_signal(signal.SIGCONT)
    resumed = time.monotonic()
    try:
        told, _ = holder.wait_for("lost")
        holder.end()
        what = f"free after {took:.2f} s, told {told - resumed:.2f} s after it went on"
        return report(is_free_in_time, f"{name}: a holder that stood still: {what}") and is_good
    except AssertionError as error:
        holder.end()
        return report(False, f"{name}: a holder that stood still is not told: {error}")


def at_a_shell(cluster):
    """zkCli: the seed's words, one after the other."""
    lines = [
        ("create /shell me", "Created /shell"),
        ("create -s /shell/s- me", "Created /shell/s-0000000000"),
        ("create -e /shell/held me", "Created /shell/held"),
        ("create /shell me", "Node already exists: /shell"),
        ("set /shell you", ""),
        ("get /shell", "you"),
        ("stat /shell", "dataVersion = 1"),
        ("ls /shell", "[held, s-0000000000]"),
        ("getAcl /shell", "'world,'anyone"),
        ("getEphemerals /shell", "[/shell/held]"),
        ("deleteall /shell", ""),
        ("stat /shell", "Node does not exist: /shell"),
        ("quit", ""),
    ]
    command = [*JAVA, CLASSES, "org.apache.zookeeper.ZooKeeperMain", "-waitforconnection", "-timeout", "30000", "-server", cluster.connect]
    text = "".join(f"{line}\n" for line, _ in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = done.stdout + done.stderr
    missing = [line for line, wanted in lines if wanted not in said]
    is_good = report(not missing, f"zkCli: {', '.join(line for line, _ in lines)}")
    if missing:
        print(f"no answer as expected to {missing}:\n{said[-5000:]}", flush=True)
    return is_good


def words(cluster):
    node = cluster.nodes[0]
    answers = {word: node.word(word) for word in ("ruok", "srvr", "stat", "mntr", "isro", "conf", "cons", "envi")}
    wanted = {"ruok": "imok", "srvr": "Zookeeper version: 3.8", "stat": "Clients:", "mntr": "zk_server_state\t", "isro": "rw",
              "conf": "", "cons": "", "envi": "zookeeper.version=3.8"}  # fmt: skip
    missing = [word for word, part in wanted.items() if part not in answers[word]]
    return report(not missing, f"words of four letters{''.join(f'; {word}: {answers[word]!r}' for word in missing)}")


def overlaps_are_seen(directory):
    """Whether contenders without a lock fail."""
    from support import enter

    file = str(pathlib.Path(directory) / "without")
    os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    try:
        enter(file)
    except FileExistsError:
        return report(True, "a second one inside is seen")
    return report(False, "a second one inside is not seen")


def run(cluster, seconds, only):
    names = []
    for name, (command, needed, _) in CLIENTS.items():
        if only and name not in only:
            continue
        if (needed and not needed.exists()) or not shutil.which(command[0]):
            print(f"SKIPPED {name}: {needed or command[0]} is missing", flush=True)
        else:
            names.append(name)
    observer = KazooClient(cluster.connect, timeout=30, connection_retry={"max_tries": -1, "max_delay": 0.5})
    observer.start(60)
    is_good = True
    with tempfile.TemporaryDirectory() as directory:
        if not only:
            is_good &= overlaps_are_seen(directory)
            is_good &= words(cluster)
            if shutil.which("java") and pathlib.Path(CLASSES.split(":")[1]).exists():
                is_good &= at_a_shell(cluster)
        for name in names:
            observer.ensure_path(f"/recipes-{name}")
            is_good &= recipes(cluster, name)
        for name in names:
            if "hold" in CLIENTS[name][2]:
                try:
                    is_good &= hold(cluster, observer, name)
                except AssertionError as error:
                    is_good = report(False, f"{name}: a holder: {error}")
        calm = [name for name in names if "calm" in CLIENTS[name][2]]
        if calm:
            is_good &= contend(cluster, observer, calm, seconds, directory, deaths=False)
        names = [name for name in names if "contend" in CLIENTS[name][2]]
        for first in range(0, len(names), TOGETHER):
            is_good &= contend(cluster, observer, names[first : first + TOGETHER], seconds, directory)
    observer.stop()
    return is_good


def main():
    clusters.end_well_when_told()
    with tempfile.TemporaryDirectory() as directory:
        cluster = clusters.start(directory)
        print(f"{cluster.name}: {cluster.connect}", flush=True)
        try:
            return 0 if run(cluster, float(sys.argv[1]), sys.argv[2:]) else 1
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
