"""A client for `lockkeeper chaos run --program`: etcd's API over JSON, by Python's standard library alone; judged with the run.

Holders take a lock that is one key: a transaction creates it under a lease if it is not there, the lease is renewed while they work, and a
transaction deletes it if it is still theirs. The token is the key's create revision. Setters change a key if it has the value that they
expect, and read it.
"""

import base64
import itertools
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

sys.path.append(os.path.join(os.path.dirname(__file__), "../../dynamodb/clients"))

from chaos_history import HISTORY, OVER, finish, present, speaks, until_over

ENDPOINTS = os.environ["LOCKKEEPER_ETCD_ENDPOINTS"].split(",")
LEASE_SECONDS = 2
HOLDERS, SETTERS = 4, 4
# Operations of all setters after which they use the next key: a search for an order takes 200.
KEY_LIFE = 100
OPERATIONS = itertools.count()


class Unknown(Exception):
    """No answer, or none that says whether the request took effect."""


def call(endpoint, path, request):
    body = json.dumps(request).encode()
    post = urllib.request.Request(f"http://{endpoint}/v3/{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(post, timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        said = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else error
        raise Unknown(f"{path}: {said}") from error


def text(value):
    return base64.b64encode(value.encode()).decode()


def holder(number):
    process, sessions = f"etcd-lock-{number}", itertools.count()
    speaks(process, "etcd")

    def work(endpoint):
        sent = HISTORY.now()
        lease = call(endpoint, "lease/grant", {"TTL": LEASE_SECONDS})["ID"]
        session = f"{process}/{next(sessions)}"
        HISTORY.add(process, "invoke", "open", sent, session=session, ttl_ms=LEASE_SECONDS * 1000)
        HISTORY.add(process, "ok", "open")

        def renew():
            sent = HISTORY.now()
            result = call(endpoint, "lease/keepalive", {"ID": lease}).get("result", {})
            if int(result.get("TTL", 0)) == 0:
                HISTORY.add(process, "info", "lost", session=session, why="expired")
                raise Unknown("the lease is over")
            HISTORY.add(process, "info", "renewed", session=session, sent_ns=sent)

        while not OVER.is_set():
            renew()
            name = random.choice("ab")
            key, lock = text(f"chaos/{name}"), f"etcd/chaos/{name}"
            HISTORY.add(process, "invoke", "acquire", lock=lock, session=session)
            absent = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
            create = {"request_put": {"key": key, "value": text(session), "lease": lease}}
            try:
                answer = call(endpoint, "kv/txn", {"compare": [absent], "success": [create]})
            except Unknown as error:
                HISTORY.add(process, "info", "acquire", reason=str(error))
                raise
            if not answer.get("succeeded"):
                HISTORY.add(process, "fail", "acquire", reason="busy")
                time.sleep(random.random() * 0.05)
                continue
            token = int(answer["header"]["revision"])
            HISTORY.add(process, "ok", "acquire", lock=lock, token=token)
            for _ in range(random.randrange(3)):
                time.sleep(0.3)
                renew()
            HISTORY.add(process, "invoke", "release", session=session, token=token)
            own = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(token)}
            try:
                answer = call(endpoint, "kv/txn", {"compare": [own], "success": [{"request_delete_range": {"key": key}}]})
            except Unknown as error:
                HISTORY.add(process, "info", "release", reason=str(error))
                raise
            if not answer.get("succeeded"):
                HISTORY.add(process, "fail", "release", reason="not_held")
                raise Unknown("the lock was lost")
            HISTORY.add(process, "ok", "release")

    return until_over(ENDPOINTS, Unknown, work)


def setter(number):
    process = f"etcd-key-{number}"

    def work(endpoint):
        known = {}
        while not OVER.is_set():
            name = f"chaos/r{next(OPERATIONS) // KEY_LIFE}"
            key, register = text(name), f"etcd/{name}"
            if random.random() < 0.4:
                HISTORY.add(process, "invoke", "read", lock=register)
                try:
                    entries = call(endpoint, "kv/range", {"key": key}).get("kvs", [])
                except Unknown as error:
                    HISTORY.add(process, "fail", "read", reason=str(error))
                    raise
                known[name] = int(base64.b64decode(entries[0]["value"])) if entries else None
                HISTORY.add(process, "ok", "read", **present(value=known[name]))
            else:
                before, after = known.get(name), random.randrange(1000)
                HISTORY.add(process, "invoke", "set", lock=register, **present(**{"from": before}, to=after))
                if before is None:
                    condition = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
                else:
                    condition = {"key": key, "target": "VALUE", "result": "EQUAL", "value": text(str(before))}
                put = {"request_put": {"key": key, "value": text(str(after))}}
                try:
                    answer = call(endpoint, "kv/txn", {"compare": [condition], "success": [put]})
                except Unknown as error:
                    # Whether it took effect is not known, and it may still.
                    HISTORY.add(process, "info", "set", reason=str(error))
                    raise
                if answer.get("succeeded"):
                    HISTORY.add(process, "ok", "set")
                    known[name] = after
                else:
                    HISTORY.add(process, "fail", "set", reason="not_equal")
                    known.pop(name, None)
            time.sleep(random.random() * 0.05)

    return until_over(ENDPOINTS, Unknown, work)


def main():
    threads = [holder(number) for number in range(HOLDERS)] + [setter(number) for number in range(SETTERS)]
    finish(threads)


if __name__ == "__main__":
    main()
