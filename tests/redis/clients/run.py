"""All clients on a real cluster whose leader is killed while they contend, then those that wait, and those that ask Sentinels.

Usage: lockkeeper dev --redis -- PYTHON run.py SECONDS

`NODE_PATH` names npm's packages, `REDIS_LOCKS_GO` and `REDIS_LOCKS_RUST` programs; without them their clients are left out. Exit code: 1
if one failed.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cluster import leader, nodes

HERE = pathlib.Path(__file__).parent
OF_PYPI = (
    "redis-py redis-py-asyncio valkey django-redis python-redis-lock redlock-py redlock-py-of-three pottery walrus tooz portalocker"
    " py-redis-semaphore"
).split()
OF_NPM = "redlock-5 redlock-4 redis-semaphore-mutex redis-semaphore redis-lock simple-redis-mutex node-redis".split()
# From Debian, with the program that each needs.
OF_DEBIAN = {"symfony-lock": "php", "redis-rb": "ruby"}
# Compiled, with the variable that names the program of each.
OF_COMPILERS = {"redigo": "REDIS_LOCKS_GO", "redis-rs": "REDIS_LOCKS_RUST"}
# How many contend at the same time.
TOGETHER = 7
# A bound on failures, seconds.
PATIENCE = 240


class Client:
    def __init__(self, name, endpoint, seconds):
        self.name, self.said = name, []
        program = ["node", "locks.cjs"] if name in OF_NPM else [sys.executable, "-B", "locks.py"]
        self.errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        arguments = [*program, name, endpoint, str(seconds)]
        self.process = subprocess.Popen(arguments, cwd=HERE, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)

    def until_contending(self):
        for line in self.process.stdout:
            if line == "contending\n":
                return
            self.said.append(line)

    def end(self):
        """Whether it has ended well."""
        try:
            # A program that has ended already does not read.
            said, _ = self.process.communicate("\n", timeout=PATIENCE)
            self.said.append(said)
        except subprocess.TimeoutExpired:
            self.process.kill()
        is_good = self.process.wait() == 0
        print(f"{'ok    ' if is_good else 'FAILED'} {self.name}", flush=True)
        for line in "".join(self.said).splitlines():
            print(f"       {line}", flush=True)
        if not is_good:
            self.errors.seek(0)
            print(self.errors.read()[-5000:], flush=True)
        return is_good


def contend(cluster, names, seconds):
    leads = leader(cluster)
    # It outlives the leader.
    endpoint = next(node.endpoint for node in cluster if node is not leads)
    clients = [Client(name, endpoint, seconds) for name in names]
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(Client.until_contending, clients))
        leads.kill()
        ended = list(threads.map(Client.end, clients))
    leads.restart()
    return all(ended)


def overlaps_are_seen(cluster):
    """Whether contenders without a lock fail."""
    client = Client("without-a-lock", cluster[0].endpoint, 1)
    client.until_contending()
    client.process.communicate("\n", timeout=PATIENCE)
    client.errors.seek(0)
    is_good = client.process.returncode != 0 and "FileExistsError" in client.errors.read()
    print(f"{'ok    ' if is_good else 'FAILED'} contenders without a lock are seen to overlap", flush=True)
    return is_good


def main():
    seconds = float(sys.argv[1])
    cluster = nodes()
    names = [*OF_PYPI] + (OF_NPM if os.environ.get("NODE_PATH") else [])
    for name, program in OF_DEBIAN.items():
        if shutil.which(program):
            names.append(name)
        else:
            print(f"SKIPPED {name}: no {program}", flush=True)
    for name, variable in OF_COMPILERS.items():
        if os.environ.get(variable):
            names.append(name)
        else:
            print(f"SKIPPED {name}: no {variable}", flush=True)
    only = sys.argv[2:]
    names = [name for name in names if name in only or not only]
    is_good = overlaps_are_seen(cluster)
    for first in range(0, len(names), TOGETHER):
        is_good &= contend(cluster, names[first : first + TOGETHER], seconds)
    if not only:
        import waiting

        is_good &= waiting.run(cluster)
    for node in cluster:
        if node.process:
            node.process.stdin.close()
            node.process.wait(30)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
