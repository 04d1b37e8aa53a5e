"""A random walk of operations, on the endpoint and on moto: both must answer the same.

Usage: walk.py ENDPOINT [OPERATIONS] [SEED]

Responses are compared in full (sets as sets), errors by their codes; texts of errors that differ are counted and shown. A difference that
is moto's own is described in `excused`, with the reason; any other fails the walk.
"""

import collections
import decimal
import os
import random
import sys

os.environ.update(AWS_ACCESS_KEY_ID="AKIDWALK", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

import boto3
import botocore.exceptions
from moto import mock_aws

KEYS = ["a", "b", "c"]
TABLES = {"walk-one": False, "walk-two": True}
ATTRIBUTES = ["num", "txt", "tags", "lst", "doc"]


def value(rng, kind=None):
    """A value of some type; numbers in several forms."""
    kind = kind or rng.choice(["N", "N", "S", "SS", "NS", "L", "M", "NULL", "B"])
    return {
        "N": lambda: {"N": rng.choice(["0", "1", "2", "-3", "2.50", "1e2", "10"])},
        "S": lambda: {"S": rng.choice(["", "x", "xy", "ü"])},
        "B": lambda: {"B": rng.choice([b"\0", b"ab"])},
        "SS": lambda: {"SS": rng.sample(["x", "y", "z"], rng.randint(1, 3))},
        "NS": lambda: {"NS": rng.sample(["1", "2", "3.5"], rng.randint(1, 3))},
        "L": lambda: {"L": [value(rng, rng.choice(["N", "S"])) for _ in range(rng.randint(0, 3))]},
        "M": lambda: {"M": {"k": value(rng, "N"), "inner": {"M": {"deep": value(rng, "S")}}}},
        "BOOL": lambda: {"BOOL": rng.random() < 0.5},
        "NULL": lambda: {"NULL": True},
    }[kind]()


class Request:
    """Names and values of a request's expressions."""

    def __init__(self, rng):
        self.rng, self.names, self.values = rng, {}, {}

    def name(self, attribute):
        if self.rng.random() < 0.5:
            return attribute
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, kind=None):
        key = f":v{len(self.values)}"
        self.values[key] = value(self.rng, kind)
        return key

    def path(self):
        attribute = self.rng.choice([*ATTRIBUTES, "flag"])
        step = {"lst": "[1]", "doc": self.rng.choice([".k", ".inner.deep"])}.get(attribute, "")
        return self.name(attribute) + (step if self.rng.random() < 0.3 else "")

    def condition(self, depth=0):
        rng = self.rng
        choice = rng.randrange(12 if depth < 2 else 9)
        if choice == 9:
            return f"NOT {self.condition(3)}"
        if choice > 9:
            operator = rng.choice(["AND", "OR", "and"])
            return f"({self.condition(depth + 1)} {operator} {self.condition(depth + 1)})"
        path = self.path()
        if "flag" in path and 2 < choice:
            # In moto, which is Python, true is 1: only this attribute is true or false, and it is compared to nothing else.
            return f"{path} {rng.choice(['=', '<>'])} {self.value('BOOL')}"
        if choice < 2:
            return f"attribute_exists({path})"
        if choice == 2:
            return f"attribute_not_exists ({path})"
        if choice < 5:
            return f"{path} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {self.value(rng.choice(['N', 'S']))}"
        if choice == 5:
            return f"begins_with({path}, {self.value('S')})"
        if choice == 6:
            return f"contains({path}, {self.value('S')})"
        if choice == 7:
            return f"{path} IN ({self.value('N')}, {self.value('S')})"
        return f"size({path}) >= {self.value('N')}"

    def update(self):
        rng, sections = self.rng, []
        free = ATTRIBUTES[:]
        rng.shuffle(free)
        for section in rng.sample(["SET", "REMOVE", "ADD", "DELETE"], rng.randint(1, 2)):
            attribute = free.pop()
            name = self.name(attribute)
            if section == "SET":
                one = rng.choice([
                    lambda: f"{name} = {self.value()}",
                    lambda: f"{name} = if_not_exists({name}, {self.value()})",
                    lambda: f"{name} = if_not_exists({name}, {self.value('N')}) + {self.value('N')}",
                    lambda: f"{name} = list_append(if_not_exists({name}, {self.value('L')}), {self.value('L')})",
                    # A number: moto lets two attributes share a set, and then an ADD to one changes both.
                    lambda: f"{name} = {self.name('doc')}.k",
                ])()
                sections.append(f"SET {one}")
            elif section == "REMOVE":
                sections.append(f"REMOVE {name}")
            elif section == "ADD":
                sections.append(f"ADD {name} {self.value(rng.choice(['N', 'SS', 'NS']))}")
            else:
                sections.append(f"DELETE {name} {self.value(rng.choice(['SS', 'NS']))}")
        return " ".join(sections)

    def finish(self, request):
        if self.names:
            request["ExpressionAttributeNames"] = self.names
        if self.values:
            request["ExpressionAttributeValues"] = self.values
        return request


def key(rng, table):
    of_table = {"pk": {"S": rng.choice(KEYS)}}
    if TABLES[table]:
        of_table["sk"] = {"N": str(rng.randint(-2, 12))}
    return of_table


def operation(rng):
    """The name of an operation, and its request."""
    table = rng.choice(list(TABLES))
    of_request = Request(rng)
    request = {"TableName": table}
    kind = rng.choice(["put", "put", "update", "update", "update", "delete", "get", "query", "scan", "transact"])
    if kind in ("put", "update", "delete") and rng.random() < 0.6:
        request["ConditionExpression"] = of_request.condition()
        if rng.random() < 0.3:
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if kind == "put":
        request["Item"] = {**key(rng, table), **{a: value(rng) for a in rng.sample(ATTRIBUTES, rng.randint(0, 4))}}
        if rng.random() < 0.5:
            request["Item"]["flag"] = value(rng, "BOOL")
        request["ReturnValues"] = rng.choice(["NONE", "ALL_OLD"])
        return "put_item", of_request.finish(request)
    if kind == "update":
        request["Key"] = key(rng, table)
        request["UpdateExpression"] = of_request.update()
        request["ReturnValues"] = rng.choice(["NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"])
        return "update_item", of_request.finish(request)
    if kind == "delete":
        request["Key"] = key(rng, table)
        request["ReturnValues"] = rng.choice(["NONE", "ALL_OLD"])
        return "delete_item", of_request.finish(request)
    if kind == "get":
        request["Key"] = key(rng, table)
        if rng.random() < 0.5:
            request["ProjectionExpression"] = ", ".join(of_request.name(a) for a in rng.sample(ATTRIBUTES, 2))
        return "get_item", of_request.finish(request)
    if kind == "query":
        request["KeyConditionExpression"] = "pk = :pk"
        of_request.values[":pk"] = {"S": rng.choice(KEYS)}
        if TABLES[table] and rng.random() < 0.7:
            of_request.values[":sk"] = {"N": str(rng.randint(-2, 12))}
            request["KeyConditionExpression"] += f" AND sk {rng.choice(['=', '<', '<=', '>', '>='])} :sk"
        request["ScanIndexForward"] = rng.random() < 0.5
        if rng.random() < 0.5:
            request["FilterExpression"] = of_request.condition()
        return "query", of_request.finish(request)
    if kind == "scan":
        if rng.random() < 0.7:
            request["FilterExpression"] = of_request.condition()
        return "scan", of_request.finish(request)
    parts = []
    for part in ("Put", "Delete", "ConditionCheck"):
        if rng.random() < 0.6:
            names = Request(rng)
            one = {"TableName": table}
            if part == "Put":
                one["Item"] = {**key(rng, table), "num": value(rng, "N")}
            else:
                one["Key"] = key(rng, table)
            if part == "ConditionCheck" or rng.random() < 0.5:
                one["ConditionExpression"] = names.condition(2)
            parts.append({part: names.finish(one)})
    return "transact_write_items", {"TransactItems": parts or [{"Put": {"TableName": table, "Item": key(rng, table)}}]}


def normal(response):
    """Without what differs between two runs; sets in order, numbers in one form."""
    if isinstance(response, list):
        return [normal(element) for element in response]
    if not isinstance(response, dict):
        return response
    kept = {}
    for name, part in sorted(response.items()):
        if name in ("ResponseMetadata", "ConsumedCapacity", "ItemCollectionMetrics") or (name == "Attributes" and not part):
            continue
        # DynamoDB and the endpoint answer 100 for 1e2; moto answers as it was written.
        if name == "N" and isinstance(part, str):
            kept[name] = str(decimal.Decimal(part).normalize())
        elif name == "NS" and isinstance(part, list):
            kept[name] = sorted(str(decimal.Decimal(number).normalize()) for number in part)
        else:
            kept[name] = sorted(part) if name in ("SS", "BS") and isinstance(part, list) else normal(part)
    return kept


def call(client, name, request):
    try:
        response = normal(getattr(client, name)(**request))
    except botocore.exceptions.ClientError as error:
        code = error.response["Error"]["Code"]
        reasons = [reason.get("Code") for reason in error.response.get("CancellationReasons", [])]
        return (code, normal(error.response.get("Item")), reasons), error.response["Error"]["Message"]
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        # An exception of moto's own: it runs in this process.
        return ("broken", type(error).__name__, []), str(error)
    if name == "scan":
        response["Items"].sort(key=str)
    return response, None


def touched(name, request):
    """The tables and keys that a request may have written."""
    parts = [request] if name != "transact_write_items" else [p for part in request["TransactItems"] for p in part.values()]
    for part in parts:
        attributes = part.get("Key") or part.get("Item")
        if attributes:
            yield part["TableName"], {k: attributes[k] for k in ("pk", "sk") if k in attributes and (k == "pk" or TABLES[part["TableName"]])}


def excused(name, request, ours, theirs):
    """Why a difference is moto's. `None`: it is not."""
    if name in ("query", "scan") and isinstance(theirs, tuple) and "Filter" in str(request):
        return "moto refuses a filter for an item that lacks the attribute, or has another type: DynamoDB passes over the item"
    if isinstance(theirs, tuple) and (theirs[0] == "broken" or {"TypeError", "ValueError"} & set(theirs[2])):
        return "an exception of moto's own (two types that have no order, the size of what is not there): DynamoDB says no"
    if request.get("ReturnValues", "").startswith("UPDATED") and isinstance(ours, dict) and isinstance(theirs, dict):
        return "moto's UPDATED_OLD and UPDATED_NEW show keys, or hide what ADD made; the items are compared by later reads"
    return None


def follow(oracle, ours, name, request):
    """Gives moto the items that the endpoint has, as far as the request may have written them. Whether they differed."""
    differed = False
    for table, key in touched(name, request):
        item, theirs = (client.get_item(TableName=table, Key=key).get("Item") for client in (ours, oracle))
        if normal(item) == normal(theirs):
            continue
        differed = True
        if item:
            oracle.put_item(TableName=table, Item=item)
        else:
            oracle.delete_item(TableName=table, Key=key)
    return differed


def main():
    endpoint = sys.argv[1]
    operations = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng = random.Random(seed)
    outcomes, texts, excuses, differences = (collections.Counter() for _ in range(4))
    with mock_aws():
        oracle = boto3.client("dynamodb")
        ours = boto3.client("dynamodb", endpoint_url=endpoint)
        for table, has_sort in TABLES.items():
            keys = [("pk", "S", "HASH")] + ([("sk", "N", "RANGE")] if has_sort else [])
            for client in (oracle, ours):
                client.create_table(
                    TableName=table,
                    BillingMode="PAY_PER_REQUEST",
                    AttributeDefinitions=[{"AttributeName": n, "AttributeType": t} for n, t, _ in keys],
                    KeySchema=[{"AttributeName": n, "KeyType": r} for n, _, r in keys],
                )
        for step in range(operations):
            name, request = operation(rng)
            (left, left_text), (right, right_text) = call(ours, name, request), call(oracle, name, request)
            outcomes[name, left[0] if isinstance(left, tuple) else "ok"] += 1
            if left_text != right_text and left_text and right_text:
                texts[left_text[:120], right_text[:120]] += 1
            if left == right:
                if name == "update_item" and isinstance(left, tuple) and follow(oracle, ours, name, request):
                    excuses["moto's update that fails half-way leaves its first half in the item"] += 1
                continue
            reason = excused(name, request, left, right)
            if reason:
                excuses[reason] += 1
            else:
                differences[name] += 1
                if sum(differences.values()) <= 20:
                    print(f"DIFFERENCE at {step}: {name} {request}\n  ours {left} {left_text}\n  moto {right} {right_text}")
            follow(oracle, ours, name, request)
    for (name, outcome), count in sorted(outcomes.items()):
        print(f"{count:6} {name} {outcome}")
    for (left, right), count in texts.most_common():
        print(f"{count:6} texts differ\n         ours {left}\n         moto {right}")
    for reason, count in excuses.most_common():
        print(f"{count:6} excused: {reason}")
    print(f"{operations} operations, seed {seed}: {sum(excuses.values())} differences excused, {sum(differences.values())} not")
    sys.exit(1 if differences else 0)


main()
