"""boto3 itself: a lock by conditional writes, in the Java client's shape, and what else an SDK does. Usage: see support.py."""

import sys
import time
import uuid

from support import ENDPOINT, IS_PLAIN, Sent, contend, die_holding, eventually, report_dead_holder

import boto3
from boto3.dynamodb.conditions import Attr, Key
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

TABLE = "boto3"
LEASE = 2.0


def table():
    return boto3.resource("dynamodb", endpoint_url=ENDPOINT).Table(TABLE)


def try_acquire(locks, key, owner, **data):
    """The version of the lock. `None`: somebody has it."""
    version = str(uuid.uuid4())
    lock = {"key": key, "ownerName": owner, "recordVersionNumber": version, "leaseDuration": str(int(LEASE * 1000)), **data}
    try:
        locks.put_item(Item=lock, ConditionExpression=Attr("key").not_exists() | Attr("isReleased").exists())
        return version
    except locks.meta.client.exceptions.ConditionalCheckFailedException:
        return None


def release(locks, key, version):
    try:
        locks.delete_item(Key={"key": key}, ConditionExpression=Attr("recordVersionNumber").eq(version))
        return True
    except locks.meta.client.exceptions.ConditionalCheckFailedException:
        return False


def contender(process, place):
    locks = table()
    sent = Sent(locks.meta.client, "PutItem")
    while not place.over.is_set():
        try:
            version = try_acquire(locks, "contended", f"holder-{process}")
            if version is None:
                time.sleep(0.02)
                continue
            if sent.is_late(LEASE):
                place.late.value += 1
            else:
                with place.enter(process):
                    pass
            release(locks, "contended", version)
        except (ClientError, EndpointConnectionError, HTTPClientError) as error:
            print(f"holder-{process}: {error}", file=sys.stderr)


def die(key):
    return try_acquire(table(), key, "dead")


def lock_like_the_java_client(client):
    locks = table()
    version = try_acquire(locks, "renewed", "alive", note="data", numbers={1, 2}, raw=b"\0\1")
    first = locks.get_item(Key={"key": "renewed"}, ConsistentRead=True)["Item"]
    assert first["note"] == "data" and first["numbers"] == {1, 2} and first["raw"].value == b"\0\1", first
    for _ in range(4):
        time.sleep(LEASE / 2)
        before, version = version, str(uuid.uuid4())
        locks.update_item(
            Key={"key": "renewed"},
            UpdateExpression="SET recordVersionNumber = :new",
            ConditionExpression=Attr("recordVersionNumber").eq(before),
            ExpressionAttributeValues={":new": version},
        )
    assert try_acquire(locks, "renewed", "other") is None, "renewed"
    kept = locks.update_item(
        Key={"key": "renewed"},
        UpdateExpression="SET isReleased = :yes",
        ConditionExpression=Attr("recordVersionNumber").eq(version),
        ExpressionAttributeValues={":yes": "1"},
        ReturnValues="ALL_NEW",
    )["Attributes"]
    assert kept["isReleased"] == "1" and kept["note"] == "data" and kept.get("fencingToken") == first.get("fencingToken"), kept
    version = try_acquire(locks, "renewed", "other")
    if not IS_PLAIN:
        token = locks.get_item(Key={"key": "renewed"})["Item"]["fencingToken"]
        assert token > first["fencingToken"], "the token rises"
    assert not release(locks, "renewed", "another version") and release(locks, "renewed", version)
    assert "Item" not in locks.get_item(Key={"key": "renewed"})
    print("renewed for longer than its lease, with data and one token; released without deletion, and with it")

    died = die_holding(die, "dead")
    time.sleep(LEASE + 1)
    if IS_PLAIN:
        return
    came = time.monotonic()
    taken = eventually("the lock of the dead", lambda: try_acquire(locks, "dead", "alive"))
    report_dead_holder(LEASE, came - died, time.monotonic() - came)
    assert release(locks, "dead", taken)


def everything_else(client):
    """Listing, pages, batches, transactions, times to live."""
    name = "boto3-more"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "N"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    )
    client.get_waiter("table_exists").wait(TableName=name)
    items = boto3.resource("dynamodb", endpoint_url=ENDPOINT).Table(name)
    with items.batch_writer() as batch:
        for n in range(60):
            batch.put_item(Item={"pk": "all" if n % 2 else "odd", "sk": n, "ownerName": f"owner-{n % 3}"})
    pages = list(client.get_paginator("scan").paginate(TableName=name, PaginationConfig={"PageSize": 7}))
    assert len(pages) > 5 and sum(page["Count"] for page in pages) == 60, [page["Count"] for page in pages]
    found = items.query(KeyConditionExpression=Key("pk").eq("all") & Key("sk").between(10, 20), ScanIndexForward=False)["Items"]
    assert [int(item["sk"]) for item in found] == [19, 17, 15, 13, 11], found
    of_owner = items.scan(FilterExpression=Attr("ownerName").eq("owner-1"))
    assert (of_owner["Count"], of_owner["ScannedCount"]) == (20, 60), of_owner
    keys = [{"pk": {"S": "all"}, "sk": {"N": str(n)}} for n in (1, 3, 1000)]
    got = client.batch_get_item(RequestItems={name: {"Keys": keys}})["Responses"][name]
    assert len(got) == 2, got

    def put(n, expects):
        item = {"pk": {"S": "written"}, "sk": {"N": str(n)}}
        condition = "attribute_not_exists(pk)" if expects else "attribute_exists(pk)"
        return {"Put": {"TableName": name, "Item": item, "ConditionExpression": condition}}

    token = str(uuid.uuid4())
    # The second one is the first one again (moto does not know of that).
    for _ in range(1 if IS_PLAIN else 2):
        client.transact_write_items(TransactItems=[put(1, True), put(2, True)], ClientRequestToken=token)
    try:
        client.transact_write_items(TransactItems=[put(1, False), put(2, True)])
        raise AssertionError("was to be cancelled")
    except client.exceptions.TransactionCanceledException as error:
        assert [reason["Code"] for reason in error.response["CancellationReasons"]] == ["None", "ConditionalCheckFailed"]
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"})
    assert client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]["AttributeName"] == "expires"
    assert {TABLE, name} <= set(client.get_paginator("list_tables").paginate().build_full_result()["TableNames"])
    client.delete_table(TableName=name)
    client.get_waiter("table_not_exists").wait(TableName=name)
    try:
        items.get_item(Key={"pk": "all", "sk": 1})
        raise AssertionError("the table is gone")
    except client.exceptions.ResourceNotFoundException:
        pass
    print("pages, queries, filters, batches, transactions and tables are as boto3 wants them")


def main():
    client = boto3.client("dynamodb", endpoint_url=ENDPOINT)
    client.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
    )
    contend(contender)
    lock_like_the_java_client(client)
    everything_else(client)


if __name__ == "__main__":
    main()
