// npm's `node-zookeeper-client`, in pure JavaScript: the queue of sequential ephemerals by hand, as its users write it. Usage: see support.py.
"use strict";

const fs = require("node:fs");

const [CLIENT, MODE, CONNECT, PATH, FILE] = process.argv.slice(2);
const say = (...words) => fs.writeSync(1, `${words.join(" ")}\n`);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const ensure = (holds, what) => {
    if (!holds) throw new Error(what);
};
const sequence = (name) => Number(name.slice(-10));
let over = false;

// Each gives: create(path) of an ephemeral sequential node, children(path), watch(path) until it is gone, remove(path).
const CLIENTS = {
    async "node-zookeeper-client"(sessionTimeout) {
        const zookeeper = require("node-zookeeper-client");
        const client = zookeeper.createClient(CONNECT, { sessionTimeout, retries: 3 });
        client.on("state", (state) => {
            if (state === zookeeper.State.EXPIRED) say("lost");
            if (state === zookeeper.State.DISCONNECTED) say("suspended");
            if (state === zookeeper.State.SYNC_CONNECTED) say("connected");
        });
        const connected = new Promise((done) => client.once("connected", done));
        client.connect();
        await connected;
        // After a death of its node it may never answer a call.
        const call = (name, ...given) =>
            new Promise((done, fail) => {
                setTimeout(() => fail(new Error(`${name}: no answer`)), 5000).unref();
                client[name](...given, (error, ...found) => (error ? fail(error) : done(found)));
            });
        return {
            session: () => `0x${client.getSessionId().toString("hex")}`,
            create: async (path, isSequential = true) => {
                const { EPHEMERAL, EPHEMERAL_SEQUENTIAL } = zookeeper.CreateMode;
                return (await call("create", path, Buffer.from("me"), isSequential ? EPHEMERAL_SEQUENTIAL : EPHEMERAL))[0];
            },
            children: async (path) => (await call("getChildren", path))[0],
            exists: async (path) => !!(await call("exists", path))[0],
            watch: (path) =>
                new Promise((done, fail) =>
                    client.exists(path, () => done(), (error, stat) => (error ? fail(error) : stat || done())),
                ),
            remove: (path) => call("remove", path, -1),
            isNoNode: (error) => error.getCode?.() === zookeeper.Exception.NO_NODE,
            isExists: (error) => error.getCode?.() === zookeeper.Exception.NODE_EXISTS,
            close: () => client.close(),
            multi: async (path) => {
                const commit = (txn) => new Promise((done) => txn.commit((error, results) => done([error, results])));
                const [error] = await commit(client.transaction().create(`${path}/m`).setData(`${path}/m`, Buffer.from("x")).remove(`${path}/m`));
                ensure(!error, `a transaction: ${error}`);
                const [refused] = await commit(client.transaction().create(`${path}/m`).check(path, 99));
                ensure(refused && !(await call("exists", `${path}/m`))[0], "all or nothing");
            },
        };
    },
};

async function queue(client, path, own, mine) {
    for (;;) {
        const names = (await client.children(path)).sort((one, other) => sequence(one) - sequence(other));
        const place = names.indexOf(own.slice(path.length + 1));
        ensure(place >= 0, "its own node is gone");
        if (place === 0) return;
        // A create that was given up may have taken effect: whoever stands behind it would wait for good.
        const left = names.slice(0, place).filter((name) => mine && name.startsWith(mine));
        if (left.length > 0) {
            for (const name of left) await again(client, () => client.remove(`${path}/${name}`));
            continue;
        }
        // A watch that is lost with its connection ends by this time.
        await Promise.race([client.watch(`${path}/${names[place - 1]}`), sleep(3000)]);
    }
}

async function again(client, work) {
    while (!over) {
        try {
            return await work();
        } catch (error) {
            if (client.isNoNode(error)) return null;
            say("failed", error);
            await sleep(200);
        }
    }
    return null;
}

async function contend(client) {
    const mine = `${process.pid}-${Math.random().toString(36).slice(2)}-`;
    while (!over) {
        try {
            const own = await client.create(`${PATH}/${mine}`);
            await queue(client, PATH, own, mine);
            fs.closeSync(fs.openSync(FILE, "wx"));
            await sleep(5);
            fs.unlinkSync(FILE);
            say("tenure");
        } catch (error) {
            if (error.code === "EEXIST") {
                say("overlap");
                return 1;
            }
            say("failed", error);
        }
        // By its prefix: whether a create whose answer was lost has happened is not known.
        const left = (await again(client, () => client.children(PATH))) ?? [];
        for (const name of left.filter((name) => name.startsWith(mine))) {
            await again(client, () => client.remove(`${PATH}/${name}`));
        }
        await sleep(5);
    }
    return 0;
}

async function recipes(client) {
    const path = `${PATH}/node`;
    await client.create(path, false);
    try {
        await client.create(path, false);
        ensure(false, "it exists");
    } catch (error) {
        ensure(client.isExists(error), error);
    }
    say("ok ephemeral");
    const gone = client.watch(path);
    await sleep(50);
    await client.remove(path);
    await gone;
    ensure(!(await client.exists(path)), "it is gone");
    say("ok watch");
    const names = [];
    for (let n = 0; n < 5; n++) names.push(await client.create(`${PATH}/s-`));
    ensure(names.every((name, n) => n === 0 || sequence(name) === sequence(names[n - 1]) + 1), names);
    await queue(client, PATH, names[0]);
    say("ok sequence");
    await client.multi(PATH);
    say("ok multi");
    return 0;
}

async function main() {
    process.stdin.on("end", () => (over = true)).on("error", () => (over = true)).resume();
    const client = await CLIENTS[CLIENT](MODE === "hold" ? 4000 : 20000);
    if (MODE === "hold") {
        const own = await client.create(`${PATH}/h-`);
        await queue(client, PATH, own);
        say("held", client.session());
        while (!over) await sleep(20);
        return 0;
    }
    return MODE === "contend" ? contend(client) : recipes(client);
}

main().then(
    (code) => process.exit(code),
    (error) => {
        console.error(error);
        say("FAILED", error);
        process.exit(1);
    },
);
