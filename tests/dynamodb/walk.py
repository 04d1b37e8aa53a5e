"""A random walk of operations, on the endpoint and on an oracle: both must answer the same.

Usage: walk.py ENDPOINT [OPERATIONS] [SEED] [ORACLE]

The oracle is moto, or the dynalite that listens at ORACLE.

Requests and responses are JSON, as they are sent: an SDK would take most of the time (its parts are tested by the programs in `clients`).
The endpoint is asked over one connection, moto within this process. Responses are compared in full (sets as sets), errors by their codes;
texts of errors that differ are counted and shown. A difference that is the oracle's own is described in `excused_of_moto` or
`excused_of_dynalite`, with the reason; any other fails the walk.
"""

import base64
import collections
import decimal
import http.client
import json
import os
import random
import sys
import urllib.parse
import zlib

os.environ.update(AWS_ACCESS_KEY_ID="AKIDWALK", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

from moto import mock_aws
from moto.core.request import Request as MotoRequest
from moto.dynamodb.responses import DynamoHandler

KEYS = ["a", "b", "c"]
TABLES = {"walk-one": False, "walk-two": True}
ATTRIBUTES = ["num", "txt", "tags", "lst", "doc"]
AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=AKIDWALK/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"


def headers(operation):
    target = f"DynamoDB_20120810.{operation}"
    named = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
    return {**named, "X-Amz-Date": "20260101T000000Z", "Authorization": AUTHORIZATION}


class Endpoint:
    """A server of DynamoDB's API, by one connection."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)

    def call(self, operation, request):
        """The status of the answer, and its body."""
        self.connection.request("POST", "/", json.dumps(request), headers(operation))
        response = self.connection.getresponse()
        body = response.read()
        checksum = response.getheader("x-amz-crc32")
        assert checksum is None or int(checksum) == zlib.crc32(body), f"{operation}: the checksum of {body} is not {checksum}"
        return response.status, json.loads(body)


class Moto:
    """moto in this process, by what its server would call."""

    URL = "https://dynamodb.us-east-1.amazonaws.com/"

    def call(self, operation, request):
        sent = MotoRequest.from_primitives("POST", self.URL, headers(operation), json.dumps(request))
        status, _, body = DynamoHandler.dispatch(sent, self.URL, sent.headers)
        return status, json.loads(body)


def value(rng, kind=None):
    """A value of some type; numbers in several forms."""
    kind = kind or rng.choice(["N", "N", "S", "SS", "NS", "L", "M", "NULL", "B"])
    return {
        "N": lambda: {"N": rng.choice(["0", "1", "2", "-3", "2.50", "1e2", "10"])},
        "S": lambda: {"S": rng.choice(["", "x", "xy", "ü"])},
        "B": lambda: {"B": base64.b64encode(rng.choice([b"\0", b"ab"])).decode()},
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
        return "PutItem", of_request.finish(request)
    if kind == "update":
        request["Key"] = key(rng, table)
        request["UpdateExpression"] = of_request.update()
        request["ReturnValues"] = rng.choice(["NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"])
        return "UpdateItem", of_request.finish(request)
    if kind == "delete":
        request["Key"] = key(rng, table)
        request["ReturnValues"] = rng.choice(["NONE", "ALL_OLD"])
        return "DeleteItem", of_request.finish(request)
    if kind == "get":
        request["Key"] = key(rng, table)
        if rng.random() < 0.5:
            request["ProjectionExpression"] = ", ".join(of_request.name(a) for a in rng.sample(ATTRIBUTES, 2))
        return "GetItem", of_request.finish(request)
    if kind == "query":
        request["KeyConditionExpression"] = "pk = :pk"
        of_request.values[":pk"] = {"S": rng.choice(KEYS)}
        if TABLES[table] and rng.random() < 0.7:
            of_request.values[":sk"] = {"N": str(rng.randint(-2, 12))}
            request["KeyConditionExpression"] += f" AND sk {rng.choice(['=', '<', '<=', '>', '>='])} :sk"
        request["ScanIndexForward"] = rng.random() < 0.5
        if rng.random() < 0.5:
            request["FilterExpression"] = of_request.condition()
        return "Query", of_request.finish(request)
    if kind == "scan":
        if rng.random() < 0.7:
            request["FilterExpression"] = of_request.condition()
        return "Scan", of_request.finish(request)
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
    return "TransactWriteItems", {"TransactItems": parts or [{"Put": {"TableName": table, "Item": key(rng, table)}}]}


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


def call(server, name, request):
    """The answer as it is compared, and the text of an error."""
    try:
        status, body = server.call(name, request)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        # An exception of moto's own: it runs in this process.
        return ("broken", type(error).__name__, []), str(error)
    if status != 200:
        code = body["__type"].split("#")[-1]
        reasons = [reason.get("Code") for reason in body.get("CancellationReasons", [])]
        return (code, normal(body.get("Item")), reasons), body.get("message", body.get("Message"))
    response = normal(body)
    if name == "Scan":
        response["Items"].sort(key=str)
    return response, None


def touched(name, request):
    """The tables and keys that a request may have written."""
    parts = [request] if name != "TransactWriteItems" else [p for part in request["TransactItems"] for p in part.values()]
    for part in parts:
        attributes = part.get("Key") or part.get("Item")
        if attributes:
            yield part["TableName"], {k: attributes[k] for k in ("pk", "sk") if k in attributes and (k == "pk" or TABLES[part["TableName"]])}


def excused_of_moto(name, request, ours, theirs):
    """Why a difference is moto's. `None`: it is not."""
    if name in ("Query", "Scan") and isinstance(theirs, tuple) and "Filter" in str(request):
        return "moto refuses a filter for an item that lacks the attribute, or has another type: DynamoDB passes over the item"
    if isinstance(theirs, tuple) and (theirs[0] == "broken" or {"TypeError", "ValueError"} & set(theirs[2])):
        return "an exception of moto's own (two types that have no order, the size of what is not there): DynamoDB says no"
    if request.get("ReturnValues", "").startswith("UPDATED") and isinstance(ours, dict) and isinstance(theirs, dict):
        return "moto's UPDATED_OLD and UPDATED_NEW show keys, or hide what ADD made; the items are compared by later reads"
    return None


def excused_of_dynalite(name, request, ours, theirs):
    """Why a difference is dynalite's. `None`: it is not."""
    if name == "TransactWriteItems" and isinstance(theirs, tuple) and theirs[0] == "UnknownOperationException":
        return "dynalite has no transactions"
    if "ReturnValuesOnConditionCheckFailure" in request and isinstance(theirs, tuple) and ours[0] == theirs[0] and not theirs[1]:
        return "dynalite knows no ReturnValuesOnConditionCheckFailure"
    condition = request.get("FilterExpression", request.get("ConditionExpression", ""))
    is_of_texts = "size(" in condition or "contains(" in condition
    hides_item = isinstance(theirs, dict) and "{'S': ''}" in str(ours)
    refuses = isinstance(ours, dict) and isinstance(theirs, tuple) and theirs[0] == "ConditionalCheckFailedException"
    if is_of_texts and (hides_item or refuses):
        return "for dynalite, which is JavaScript, an empty text is not there: DynamoDB says that its size is 0, and finds it in a list"
    return None


def follow(oracle, ours, name, request):
    """Gives the oracle the items that the endpoint has, as far as the request may have written them. Whether they differed."""
    differed = False
    for table, key in touched(name, request):
        asked = {"TableName": table, "Key": key}
        item, theirs = (server.call("GetItem", asked)[1].get("Item") for server in (ours, oracle))
        if normal(item) == normal(theirs):
            continue
        differed = True
        if item:
            oracle.call("PutItem", {"TableName": table, "Item": item})
        else:
            oracle.call("DeleteItem", asked)
    return differed


def main():
    endpoint = sys.argv[1]
    operations = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    dynalite = Endpoint(sys.argv[4]) if len(sys.argv) > 4 else None
    rng = random.Random(seed)
    outcomes, texts, excuses, differences = (collections.Counter() for _ in range(4))
    with mock_aws():
        oracle, ours = dynalite or Moto(), Endpoint(endpoint)
        for table, has_sort in TABLES.items():
            keys = [("pk", "S", "HASH")] + ([("sk", "N", "RANGE")] if has_sort else [])
            created = {
                "TableName": table,
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": n, "AttributeType": t} for n, t, _ in keys],
                "KeySchema": [{"AttributeName": n, "KeyType": r} for n, _, r in keys],
            }
            for server in (oracle, ours):
                status, body = server.call("CreateTable", created)
                assert status == 200, body
        for step in range(operations):
            name, request = operation(rng)
            (left, left_text), (right, right_text) = call(ours, name, request), call(oracle, name, request)
            outcomes[name, left[0] if isinstance(left, tuple) else "ok"] += 1
            if left_text != right_text and left_text and right_text:
                texts[left_text[:120], right_text[:120]] += 1
            if left == right:
                if name == "UpdateItem" and isinstance(left, tuple) and follow(oracle, ours, name, request):
                    excuses["an update of the oracle's that fails half-way leaves its first half in the item"] += 1
                continue
            reason = (excused_of_dynalite if dynalite else excused_of_moto)(name, request, left, right)
            if reason:
                excuses[reason] += 1
            else:
                differences[name] += 1
                if sum(differences.values()) <= 20:
                    print(f"DIFFERENCE at {step}: {name} {request}\n  ours {left} {left_text}\n  theirs {right} {right_text}")
            follow(oracle, ours, name, request)
    for (name, outcome), count in sorted(outcomes.items()):
        print(f"{count:6} {name} {outcome}")
    for (left, right), count in texts.most_common():
        print(f"{count:6} texts differ\n         ours {left}\n         theirs {right}")
    for reason, count in excuses.most_common():
        print(f"{count:6} excused: {reason}")
    print(f"{operations} operations, seed {seed}: {sum(excuses.values())} differences excused, {sum(differences.values())} not")
    sys.exit(1 if differences else 0)


main()
