"""Contenders for one lock, with a client from PyPI as it is.

contenders.py CLIENT HOST:PORT, where CLIENT is etcd3, etcd3gw or tooz. Writes "contending" once each contender has had the lock, goes on
until a line is read and each has had it again, then lets a lease be revoked and a holder go away, and writes what it saw as JSON.
"""

import json
import sys
import threading
import time

CONTENDERS = 8
TTL = 3
kind, endpoint = sys.argv[1:3]
host, port = endpoint.rsplit(":", 1)


class Etcd3:
    def __init__(self, name):
        import etcd3

        self.client = etcd3.client(host=host, port=int(port), timeout=5)
        self.name = name

    def acquire(self):
        self.lock = self.client.lock(self.name, ttl=TTL)
        return self.lock.acquire(timeout=1)

    def release(self):
        return self.lock.release()

    def holds(self):
        return self.lock.is_acquired()

    def revoke(self):
        self.client.revoke_lease(self.lock.lease.id)


class Etcd3gw:
    def __init__(self, name):
        import etcd3gw

        self.client = etcd3gw.client(host=host, port=int(port), timeout=5)
        self.name = name

    def acquire(self):
        self.lock = self.client.lock(self.name, ttl=TTL)
        if self.lock.acquire():
            return True
        self.lock.lease.revoke()
        time.sleep(0.01)
        return False

    def release(self):
        return self.lock.release()

    def holds(self):
        return self.lock.is_acquired()

    def revoke(self):
        self.lock.lease.revoke()


class Tooz:
    def __init__(self, name):
        from tooz import coordination

        url = f"etcd3+http://{endpoint}?api_version=v3&lock_timeout={TTL}&timeout=5"
        self.coordinator = coordination.get_coordinator(url, f"member-{id(self)}".encode())
        self.coordinator.start(start_heart=False)
        self.name = name.encode()

    def acquire(self):
        self.lock = self.coordinator.get_lock(self.name)
        if self.lock.acquire(blocking=False):
            return True
        time.sleep(0.01)
        return False

    def release(self):
        return self.lock.release()

    def holds(self):
        # Its own `acquired` does not ask.
        value = self.coordinator.client.get(self.lock._key.decode())
        return bool(value) and value[0] == __import__("base64").b64decode(self.lock._uuid)

    def revoke(self):
        self.lock._lease.revoke()


CLIENTS = {"etcd3": Etcd3, "etcd3gw": Etcd3gw, "tooz": Tooz}
inside, seen = [], {"overlaps": 0, "errors": 0}
told = threading.Event()
before, after = [0] * CONTENDERS, [0] * CONTENDERS


def attempt(client):
    """Whether it acquired the lock. An error, as while there is no leader, is an attempt that failed."""
    try:
        return client.acquire()
    except Exception:
        seen["errors"] += 1
        time.sleep(0.1)
        return False


def contend(number):
    client = CLIENTS[kind]("jobs")
    while not min(after):
        if not attempt(client):
            continue
        inside.append(number)
        if len(inside) > 1:
            seen["overlaps"] += 1
        time.sleep(0.002)
        inside.remove(number)
        (after if told.is_set() else before)[number] += 1
        try:
            client.release()
        except Exception:
            # Its lease ends it.
            seen["errors"] += 1
        # The others have their turn.
        time.sleep(0.02)


threads = [threading.Thread(target=contend, args=[number], daemon=True) for number in range(CONTENDERS)]
for thread in threads:
    thread.start()
while not min(before):
    time.sleep(0.01)
print("contending", flush=True)
sys.stdin.readline()
told.set()
for thread in threads:
    thread.join()

one, two = CLIENTS[kind]("lost"), CLIENTS[kind]("lost")
assert attempt(one) and one.holds()
assert not attempt(two)
one.revoke()
assert not one.holds()
while not attempt(two):
    pass
assert two.holds() and not one.release()
# The holder does nothing more: its lease ends.
while not attempt(one):
    pass
assert one.holds() and not two.holds()
assert one.release()
print(json.dumps({"before": sum(before), "after": sum(after), **seen}), flush=True)
