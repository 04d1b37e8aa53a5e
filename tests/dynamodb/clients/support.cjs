// What the programs of npm's clients share: see support.py, whose usage and output these have too.
"use strict";

const { fork } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const readline = require("node:readline");

Object.assign(process.env, {
    AWS_ACCESS_KEY_ID: "AKIDLOCK",
    AWS_SECRET_ACCESS_KEY: "secret",
    AWS_REGION: "us-east-1",
    AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE: "1",
});

const [ENDPOINT, SECONDS, ...FLAGS] = process.argv.slice(2);
const IS_PLAIN = FLAGS.includes("plain");
// A bound on failures.
const PATIENCE_MS = 90_000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function assert(holds, problem) {
    if (!holds) {
        throw new Error(typeof problem === "string" ? problem : JSON.stringify(problem));
    }
}

async function eventually(what, condition) {
    const end = performance.now() + PATIENCE_MS;
    while (!condition()) {
        assert(performance.now() < end, `never: ${what}`);
        await sleep(20);
    }
}

// A place for one, between processes.
async function enter(place) {
    // Fails if the other one is inside.
    fs.closeSync(fs.openSync(place, "wx"));
    await sleep(5);
    fs.unlinkSync(place);
}

// For each role, two processes contend: they run `roles[name](n, tenure, isOver)` of `start`, which acquires, calls `tenure(isLate)` and
// releases, until `isOver()`. A tenure that begins when its lease may be over already is late, and does not enter.
async function contend(program, names) {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "contended-"));
    const pairs = names.map((name) => {
        const pair = { name, entered: [0, 0], late: 0, ended: [], children: [] };
        pair.children = pair.entered.map((_, n) => {
            const child = fork(program, [ENDPOINT, SECONDS, ...FLAGS, `${name}=${n}`, `place=${directory}/${name}`]);
            child.on("message", (isLate) => (isLate ? pair.late++ : pair.entered[n]++));
            child.on("exit", (code) => pair.ended.push(code));
            return child;
        });
        pair.sum = () => pair.entered[0] + pair.entered[1];
        return pair;
    });
    const each = (holds) => () =>
        pairs.every((pair) => {
            assert(pair.ended.length === 0, `${pair.name}: a contender ended: ${pair.ended}`);
            return holds(pair);
        });
    try {
        await eventually("all have entered", each(({ entered }) => entered.every((count) => count > 0)));
        console.log("contending");
        const lines = readline.createInterface({ input: process.stdin });
        await new Promise((resolve) => lines.once("line", () => lines.close()).once("close", resolve));
        const started = performance.now();
        pairs.forEach((pair) => (pair.before = pair.sum()));
        const isOver = () => performance.now() > started + SECONDS * 1000;
        await eventually("all entered again", each((pair) => isOver() && pair.sum() > pair.before + 5));
        const seconds = ((performance.now() - started) / 1000).toFixed(1);
        pairs.forEach(({ children }) => children.forEach((child) => child.send("over")));
        await eventually("the contenders end", () => pairs.every(({ ended }) => ended.length === 2));
        for (const { name, entered, late, ended, before, sum } of pairs) {
            assert(ended.every((code) => code === 0), `${name}: two were inside, or a contender failed: ${ended}`);
            const tenures = `${name}: contended: ${entered[0]} + ${entered[1]} tenures`;
            console.log(`${tenures}, ${sum() - before} of them in the last ${seconds} s, ${late} came too late`);
        }
    } finally {
        pairs.forEach(({ children }) => children.forEach((child) => child.kill("SIGKILL")));
        fs.rmSync(directory, { recursive: true });
    }
}

// Runs a function in a process that ends without a word after it. When it did.
async function dieHolding(program, name) {
    const child = fork(program, [ENDPOINT, SECONDS, ...FLAGS, `${name}=die`]);
    const code = await new Promise((resolve) => child.on("exit", (_, signal) => resolve(signal)));
    assert(code === "SIGKILL", `${name} was to die holding`);
    return performance.now();
}

function reportDeadHolder(name, leaseMs, waitedMs, tookMs) {
    const [lease, waited, took] = [leaseMs / 1000, (waitedMs / 1000).toFixed(1), (tookMs / 1000).toFixed(2)];
    console.log(`${name}: dead holder: lease ${lease} s; a caller that came ${waited} s after its death had the lock ${took} s later`);
}

// Runs `main`; in a process that it started, the role or death of that name.
function start(main, roles, deaths) {
    const option = (name) => FLAGS.find((flag) => flag.startsWith(`${name}=`))?.slice(name.length + 1);
    const contended = Object.keys(roles).find((name) => option(name) !== undefined && option(name) !== "die");
    const dies = Object.keys(deaths).find((name) => option(name) === "die");
    const fail = (error) => {
        console.error(error);
        process.exit(1);
    };
    if (dies) {
        deaths[dies]().then(() => process.kill(process.pid, "SIGKILL"), fail);
    } else if (contended) {
        let isOver = false;
        process.on("message", () => (isOver = true));
        const tenure = async (isLate) => {
            if (!isLate) {
                await enter(option("place"));
            }
            process.send(isLate);
        };
        roles[contended](Number(option(contended)), tenure, () => isOver).then(() => process.exit(0), fail);
    } else {
        main().then(() => process.exit(0), fail);
    }
}

module.exports = { ENDPOINT, IS_PLAIN, assert, contend, dieHolding, eventually, reportDeadHolder, sleep, start };
