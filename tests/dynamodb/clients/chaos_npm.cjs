// A client for `lockkeeper chaos run --program`: `@deliveryhero/dynamodb-lock` contends for locks, and is judged. What it writes is told in
// chaos_python.py.
"use strict";

Object.assign(process.env, { AWS_ACCESS_KEY_ID: "AKIDCHAOS", AWS_SECRET_ACCESS_KEY: "secret", AWS_REGION: "us-east-1" });

const { DynamoDBClient, CreateTableCommand, waitUntilTableExists } = require("@aws-sdk/client-dynamodb");
const { DynamoDBDocument } = require("@aws-sdk/lib-dynamodb");
const { dynamoDBLockClientFactory } = require("@deliveryhero/dynamodb-lock");

const { add, hold, now, run, sleep, start } = require("./chaos_history.cjs");

const ENDPOINTS = process.env.LOCKKEEPER_DYNAMODB_ENDPOINTS.split(",");
const TABLE = "chaos-npm";
const LEASE_MS = 2000;
const HOLDERS = 3;

const clientOf = (endpoint) => new DynamoDBClient({ endpoint, region: "us-east-1", maxAttempts: 3, requestHandler: { requestTimeout: 5000 } });

// One client at one endpoint, until an error.
async function work(name, endpoint, tenures) {
    const service = clientOf(endpoint);
    const documents = DynamoDBDocument.from(service, { marshallOptions: { removeUndefinedValues: true } });
    const state = { sent: 0, pending: 0, session: undefined, failed: undefined, unreleased: undefined };
    const write = (operation) => async (request) => {
        const at = now();
        state.pending++;
        try {
            const answer = await documents[operation](request);
            state.sent = at;
            if (operation === "update" && state.session) {
                add(name, "info", "renewed", { session: state.session, sent_ns: at });
            }
            return answer;
        } catch (error) {
            // A renewal is run by a timer, and its error is in nobody's hands.
            state.failed = operation === "update" ? error : state.failed;
            throw error;
        } finally {
            // After the client has its answer.
            setImmediate(() => state.pending--);
        }
    };
    const observed = {
        get: (request) => documents.get({ ...request, ConsistentRead: true }),
        delete: async (request) => {
            try {
                return await documents.delete(request);
            } catch (error) {
                // The client takes a condition that failed for a release: of a lock that was lost meanwhile, too.
                state.unreleased = error.name;
                throw error;
            }
        },
        update: write("update"),
        put: write("put"),
    };
    const client = dynamoDBLockClientFactory(observed, { tableName: TABLE, ttlKey: "ttl" });
    try {
        while (!run.isOver) {
            const lockId = Math.random() < 0.5 ? "a" : "b";
            const lock = await client.lock("group", lockId, { leaseDurationInMs: LEASE_MS, prolongEveryMs: LEASE_MS / 4 });
            const at = state.sent;
            const { Item } = await documents.get({ TableName: TABLE, Key: { lockId, lockGroup: "group" }, ConsistentRead: true });
            if (now() - at > LEASE_MS * 0.8e6 || Item?.recordVersionNumber === undefined) {
                // Too late: the client has no clock of its own.
                await client.releaseLock(lock).catch(() => undefined);
                continue;
            }
            const [resource, session] = [`dynamodb/${TABLE}/${lockId}/group`, `${name}/${tenures.count++}`];
            const token = Number(Item.fencingToken);
            add(name, "invoke", "open", { at, session, ttl_ms: LEASE_MS });
            add(name, "ok", "open", { at });
            add(name, "invoke", "acquire", { at, lock: resource, session });
            add(name, "ok", "acquire", { lock: resource, token });
            state.session = session;
            await sleep([0, 10, 50, LEASE_MS * 0.6][Math.floor(Math.random() * 4)]);
            // It does not release a lock whose renewal is under way.
            while (state.pending > 0) {
                await sleep(5);
            }
            state.session = state.unreleased = undefined;
            add(name, "invoke", "release", { session, token });
            try {
                await client.releaseLock(lock);
                if (state.unreleased) {
                    add(name, "info", "release", { reason: state.unreleased });
                } else {
                    add(name, "ok", "release");
                }
            } catch (error) {
                add(name, "info", "release", { reason: error.name });
                throw error;
            }
            if (state.failed) {
                throw state.failed;
            }
            // A waiter looks again once in a lease: without a pause it starves.
            await sleep(50);
        }
    } finally {
        service.destroy();
    }
}

/** The faults may have begun by now: at any node, and again where an answer was lost. */
async function createTable() {
    const table = {
        TableName: TABLE,
        BillingMode: "PAY_PER_REQUEST",
        AttributeDefinitions: ["lockId", "lockGroup"].map((AttributeName) => ({ AttributeName, AttributeType: "S" })),
        KeySchema: [
            { AttributeName: "lockId", KeyType: "HASH" },
            { AttributeName: "lockGroup", KeyType: "RANGE" },
        ],
    };
    for (let tries = 0; !run.isOver; tries++) {
        const service = clientOf(ENDPOINTS[tries % ENDPOINTS.length]);
        try {
            await service.send(new CreateTableCommand(table));
            return await waitUntilTableExists({ client: service, maxWaitTime: 30 }, { TableName: TABLE });
        } catch (error) {
            if (error.name === "ResourceInUseException") return;
            console.error(`the table: ${error}`);
            await sleep(100);
        }
    }
}

start(async () => {
    process.on("unhandledRejection", (error) => console.error(error.message));
    await createTable();
    const holder = (_, number) => hold(`npm-lock-${number}`, "dynamodb", ENDPOINTS, number, work);
    await Promise.all(Array.from({ length: HOLDERS }, holder));
});
