"""A client for `lockkeeper chaos run --program`: additions to a set under a lock by etcd's recipe, as in Jepsen's tests of etcd.

lock_set.py NAME HOST:PORT, with the address of the resource that has the sets (`lock_set.rs`).

Adders take a lock by the recipe of etcd's `concurrency` package, read a set, add an element, and write the whole set back. One of them now
and then does nothing for so long that its lease ends, until another one has written: then it goes on as if it still held the lock.

To the history a set is a register, whose value is the element that was added last: an addition sets it from the one that was read. An
addition that overwrites another one has read a value that was not the last one any more, so no order explains the history. The lock itself
is not in it: by this recipe a token is given to who joins the queue, and the history knows tokens that are given with the lock.
"""

import itertools
import json
import random
import socket
import sys
import threading
import time

from chaos_json import ENDPOINTS, Unknown, call, text

from chaos_history import HISTORY, OVER, finish, present, until_over

name, address = sys.argv[1:]
ADDERS = 4
# Long enough for a machine that is busy with other things.
LEASE_SECONDS = 4
# Of the adder that pauses: one in so many additions.
PAUSES = 3
# Additions after which the next set is used: a search for an order takes 200 operations.
SET_LIFE = 60
# Seconds to wait for another one's addition, and to go on after the run for one such pause, if there was none in it.
PATIENCE, AFTER = 12, 15
PAUSED = threading.Event()
ADDITIONS, ELEMENTS = itertools.count(), itertools.count(1)
RENEWAL = LEASE_SECONDS / 4


class Resource:
    """The sets, which know nothing of locks; if they are fenced, they refuse tokens lower than one that they have seen."""

    def __init__(self):
        host, port = address.rsplit(":", 1)
        self.stream = socket.create_connection((host, int(port))).makefile("rw", encoding="utf-8")

    def ask(self, **request):
        self.stream.write(json.dumps(request) + "\n")
        self.stream.flush()
        return json.loads(self.stream.readline())


class Adder:
    def __init__(self, number, endpoint):
        self.number, self.endpoint = number, endpoint
        self.process, self.resource = f"{name}-{number}", Resource()

    def open(self):
        self.lease, self.renewed = call(self.endpoint, "lease/grant", {"TTL": LEASE_SECONDS})["ID"], time.monotonic()
        # The key of the recipe.
        self.key = text(f"{name}/{int(self.lease):x}")

    def renew(self):
        if time.monotonic() < self.renewed + RENEWAL:
            return
        self.renewed = time.monotonic()
        result = call(self.endpoint, "lease/keepalive", {"ID": self.lease}).get("result", {})
        if int(result.get("TTL", 0)) == 0:
            raise Unknown("the lease is over")

    def acquire(self):
        """The create revision of the key, as soon as there is no older key."""
        absent = {"key": self.key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": self.key, "value": "", "lease": self.lease}}
        answer = call(self.endpoint, "kv/txn", {"compare": [absent], "success": [put]})
        if not answer.get("succeeded"):
            raise Unknown("the key is there")
        token = int(answer["header"]["revision"])
        older = {"key": text(f"{name}/"), "range_end": text(f"{name}0"), "max_create_revision": str(token - 1), "limit": "1"}
        while call(self.endpoint, "kv/range", older).get("kvs"):
            self.renew()
            time.sleep(0.01)
        # A lease that is over has no key.
        if not call(self.endpoint, "kv/range", {"key": self.key}).get("kvs"):
            raise Unknown("the lease is over")
        return token

    def add(self, token, pauses):
        of = next(ADDITIONS) // SET_LIFE
        register, fenced = f"{name}/{of}", name == "fenced-set"
        HISTORY.add(self.process, "invoke", "read", lock=register)
        read = self.resource.ask(set=of, token=token)
        if "refused" in read:
            HISTORY.add(self.process, "fail", "read", reason="refused_token")
            return
        last = read["last"]
        HISTORY.add(self.process, "ok", "read", **present(value=last))
        if pauses:
            until = time.monotonic() + PATIENCE
            while self.resource.ask(set=of)["last"] == last and time.monotonic() < until:
                time.sleep(0.02)
        element = next(ELEMENTS)
        own = f"{self.process}-register"
        HISTORY.add(own, "invoke", "set", lock=register, **present(**{"from": last}, to=element))
        HISTORY.add(self.process, "invoke", "write", lock=f"etcd/{name}", token=token, mode="exclusive", fenced=fenced)
        written = self.resource.ask(set=of, token=token, elements=[*read["elements"], element])
        if "refused" in written:
            HISTORY.add(self.process, "fail", "write", reason="refused_token")
            HISTORY.add(own, "fail", "set", reason="refused_token")
        else:
            HISTORY.add(self.process, "ok", "write", seq=written["seq"])
            HISTORY.add(own, "ok", "set")
        if pauses and time.monotonic() < until:
            PAUSED.set()

    def release(self, token):
        own = {"key": self.key, "target": "CREATE", "result": "EQUAL", "create_revision": str(token)}
        delete = {"request_delete_range": {"key": self.key}}
        if not call(self.endpoint, "kv/txn", {"compare": [own], "success": [delete]}).get("succeeded"):
            raise Unknown("the lock was lost")


def goes_on(over=[]):
    if not OVER.is_set():
        return True
    over.append(time.monotonic())
    return not PAUSED.is_set() and time.monotonic() < over[0] + AFTER


def adder(number):
    additions = itertools.count()

    def work(endpoint):
        it = Adder(number, endpoint)
        it.open()
        while goes_on():
            it.renew()
            token = it.acquire()
            it.add(token, pauses=number == 0 and next(additions) % PAUSES == 0)
            it.release(token)
            time.sleep(random.random() * 0.1)

    return until_over(ENDPOINTS, Unknown, work)


if __name__ == "__main__":
    finish([adder(number) for number in range(ADDERS)])
