"""Pairs of acquire and release by boto3 and by bare HTTP, and what held locks take. Run by scripts/bench-dynamodb.sh.

Usage: figures.py pairs SECONDS NAME=ENDPOINT...
       figures.py held COUNT ENDPOINT PID...

A lock has the shape of the Java client's; each worker has a lock of its own. Workers are threads of up to four processes on the machine of
the server: compare figures of one run only.
"""

import http.client
import json
import multiprocessing
import os
import sys
import threading
import time
import urllib.parse
import uuid

os.environ.update(AWS_ACCESS_KEY_ID="AKIDFIGURES", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

import boto3

TABLE = "figures"
WORKERS = (1, 64)
PROCESSES_MAX = 4
AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=AKIDFIGURES/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"


class Bare:
    """One connection, and no SDK."""

    def __init__(self, endpoint):
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint).netloc, timeout=30)

    def call(self, operation, request):
        named = {"X-Amz-Target": f"DynamoDB_20120810.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        signed = {"X-Amz-Date": "20260101T000000Z", "Authorization": AUTHORIZATION}
        self.connection.request("POST", "/", json.dumps(request), {**named, **signed})
        response = self.connection.getresponse()
        body = response.read()
        assert response.status == 200, body


class Boto3:
    METHODS = {"PutItem": "put_item", "DeleteItem": "delete_item"}

    def __init__(self, endpoint):
        self.client = boto3.session.Session().client("dynamodb", endpoint_url=endpoint)

    def call(self, operation, request):
        getattr(self.client, self.METHODS[operation])(**request)


def acquire(client, key, version, lease_ms=20_000):
    lock = {"key": key, "ownerName": "figures", "recordVersionNumber": version, "leaseDuration": str(lease_ms)}
    client.call("PutItem", {
        "TableName": TABLE,
        "Item": {name: {"S": value} for name, value in lock.items()},
        "ConditionExpression": "attribute_not_exists(#pk)",
        "ExpressionAttributeNames": {"#pk": "key"},
    })


def release(client, key, version):
    client.call("DeleteItem", {
        "TableName": TABLE,
        "Key": {"key": {"S": key}},
        "ConditionExpression": "attribute_exists(#pk) AND #rvn = :rvn",
        "ExpressionAttributeNames": {"#pk": "key", "#rvn": "recordVersionNumber"},
        "ExpressionAttributeValues": {":rvn": {"S": version}},
    })


def version():
    # As the Java client writes it: only such an item is a lock.
    return str(uuid.uuid4())


def in_processes(workers, work, *arguments):
    """Runs `work(worker, *arguments)` by so many threads; a list of what they return."""
    processes = min(workers, PROCESSES_MAX)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        parts = [range(n, workers, processes) for n in range(processes)]
        return [one for part in pool.starmap(_threads, [(part, work, arguments) for part in parts]) for one in part]


def _threads(part, work, arguments):
    results = []
    threads = [threading.Thread(target=lambda n=n: results.append(work(n, *arguments))) for n in part]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(part), "a worker failed"
    return results


def pairs_of(worker, endpoint, is_bare, seconds):
    """The milliseconds of each pair, after a second of warming up."""
    client = Bare(endpoint) if is_bare else Boto3(endpoint)
    started, took = time.monotonic(), []
    while (before := time.monotonic()) < started + 1 + seconds:
        of_pair = version()
        acquire(client, f"lock-{worker}", of_pair)
        release(client, f"lock-{worker}", of_pair)
        if before > started + 1:
            took.append((time.monotonic() - before) * 1000)
    return took


def create_table(endpoint):
    client = boto3.client("dynamodb", endpoint_url=endpoint)
    client.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
    )
    client.get_waiter("table_exists").wait(TableName=TABLE)


def pairs(seconds, servers):
    print("| server | client | workers | pairs a second | median ms | 99 % ms |\n|---|---|---|---|---|---|")
    for name, endpoint in servers:
        create_table(endpoint)
        for is_bare in (False, True):
            for workers in WORKERS:
                took = sorted(ms for one in in_processes(workers, pairs_of, endpoint, is_bare, seconds) for ms in one)
                median, high = (took[int(len(took) * part)] for part in (0.5, 0.99))
                client = "bare HTTP" if is_bare else "boto3"
                print(f"| {name} | {client} | {workers} | {len(took) / seconds:.0f} | {median:.1f} | {high:.1f} |", flush=True)


def hold(worker, endpoint, count, workers):
    client = Bare(endpoint)
    for n in range(worker, count, workers):
        acquire(client, f"held-{n}", version(), 3_600_000)


def resident(pids):
    pages = sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGESIZE")


def held(count, endpoint, pids):
    create_table(endpoint)
    before, started = resident(pids), time.monotonic()
    in_processes(64, hold, endpoint, count, 64)
    took, each = time.monotonic() - started, (resident(pids) - before) / count / len(pids)
    print(f"{count} locks held, acquired within {took:.0f} s: {each:.0f} resident bytes each, on each of {len(pids)} nodes")


if __name__ == "__main__":
    what, number, *rest = sys.argv[1:]
    if what == "pairs":
        pairs(float(number), [server.split("=", 1) for server in rest])
    else:
        held(int(number), rest[0], rest[1:])
