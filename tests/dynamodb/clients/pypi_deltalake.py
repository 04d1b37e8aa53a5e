"""`deltalake`: commits to its log, locked by DynamoDB; its files are in moto's S3, in a process beside this one. Usage: see support.py.

Each version of a table is committed by one writer, and what all of them have written is there in the end.
"""

import os
import signal
import subprocess
import sys
import time

from support import ENDPOINT, PROCESSES, contend, eventually

import boto3
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

TABLE, BUCKET = "deltalake", "bucket"


def options():
    return {
        "AWS_S3_LOCKING_PROVIDER": "dynamodb",
        "DELTA_DYNAMO_TABLE_NAME": TABLE,
        "AWS_ENDPOINT_URL_DYNAMODB": ENDPOINT,
        "AWS_ENDPOINT_URL_S3": os.environ["S3_ENDPOINT"],
        "AWS_ENDPOINT_URL": os.environ["S3_ENDPOINT"],
        "AWS_ACCESS_KEY_ID": "AKIDLOCK",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
    }


def append(table, writer, n):
    data = Table.from_pydict({"writer": Array([writer], DataType.int64()), "n": Array([n], DataType.int64())})
    write_deltalake(f"s3://{BUCKET}/{table}", data, mode="append", storage_options=options())


def contender(process, place):
    n = 0
    while not place.over.is_set():
        try:
            append("contended", process, n)
        except (CommitFailedError, DeltaError, OSError) as error:
            print(f"writer-{process}: {error}", file=sys.stderr)
            continue
        n += 1
        place.entered[process] += 1


def write_on(started):
    n = 0
    while True:
        append("contended", 9, n)
        n += 1
        if n == 3:
            started.set()


def main():
    moto = [sys.executable, os.path.join(os.path.dirname(__file__), "moto_server.py")]
    with subprocess.Popen(moto, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        os.environ["S3_ENDPOINT"] = server.stdout.readline().strip()
        try:
            use()
        finally:
            server.stdin.close()


def use():
    boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"]).create_bucket(Bucket=BUCKET)
    client = boto3.client("dynamodb", endpoint_url=ENDPOINT)
    client.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("tablePath", "fileName")],
        KeySchema=[{"AttributeName": "tablePath", "KeyType": "HASH"}, {"AttributeName": "fileName", "KeyType": "RANGE"}],
    )
    append("contended", 8, 0)
    contend(contender)
    start = PROCESSES.Event()
    dies = PROCESSES.Process(target=write_on, args=(start,))
    dies.start()
    eventually("the writer that will die writes", start.is_set)
    os.kill(dies.pid, signal.SIGKILL)
    dies.join()
    came = time.monotonic()
    append("contended", 8, 1)
    print(f"after a writer was killed, the next commit took {time.monotonic() - came:.2f} s")
    table = DeltaTable(f"s3://{BUCKET}/contended", storage_options=options())
    versions = [commit["version"] for commit in table.history()]
    assert sorted(versions) == list(range(table.version() + 1)), versions
    entries = client.get_paginator("query").paginate(
        TableName=TABLE,
        KeyConditionExpression="tablePath = :path",
        ExpressionAttributeValues={":path": {"S": f"s3://{BUCKET}/contended"}},
    ).build_full_result()["Items"]
    files = {entry["fileName"]["S"] for entry in entries}
    assert entries and len(files) == len(entries) and all("complete" in entry for entry in entries), entries[-1:]
    print(f"{len(versions)} versions, each committed once; {len(entries)} entries in DynamoDB, all of them complete")


if __name__ == "__main__":
    main()
