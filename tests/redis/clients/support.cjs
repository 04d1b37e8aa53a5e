// What the programs of npm's clients share: see support.py, whose usage and output these have too.
"use strict";

const { fork } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const readline = require("node:readline");

// A bound on failures.
const PATIENCE_MS = 90_000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// In milliseconds, the same for all processes.
const now = () => Number(process.hrtime.bigint()) / 1e6;

function assert(holds, problem) {
    if (!holds) {
        throw new Error(problem);
    }
}

async function eventually(what, condition) {
    const end = now() + PATIENCE_MS;
    while (!(await condition())) {
        assert(now() < end, `never: ${what}`);
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

// Two processes of this program, with these arguments and `contend=PLACE`. They send "entered", "late" or "failed", and end when told to.
async function contend(program, given, seconds) {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "contended-"));
    const count = { entered: [0, 0], late: 0, failed: 0 };
    const ended = [];
    const children = [0, 1].map((n) => {
        const child = fork(program, [...given, `contend=${directory}/inside`]);
        child.on("message", (what) => (what === "entered" ? count.entered[n]++ : count[what]++));
        child.on("exit", (code) => ended.push(code));
        return child;
    });
    const sum = () => count.entered[0] + count.entered[1];
    const alive = () => assert(ended.length === 0, "two were inside, or a contender failed") ?? true;
    try {
        await eventually("both have entered", () => alive() && count.entered.every((times) => times > 0));
        console.log("contending");
        const lines = readline.createInterface({ input: process.stdin });
        await new Promise((resolve) => lines.once("line", () => lines.close()).once("close", resolve));
        const started = now();
        const before = sum();
        await eventually("entered again", () => alive() && now() > started + seconds * 1000 && sum() > before + 5);
        const took = ((now() - started) / 1000).toFixed(1);
        const last = sum() - before;
        children.forEach((child) => child.send("over"));
        await eventually("the contenders end", () => ended.length === 2);
        assert(ended.every((code) => code === 0), `two were inside, or a contender failed: ${ended}`);
        const tenures = `contended: ${count.entered[0]} + ${count.entered[1]} tenures, ${last} of them in ${took} s after a leader's death`;
        console.log(`${tenures}; ${count.late} came too late, ${count.failed} errors`);
    } finally {
        children.forEach((child) => child.kill("SIGKILL"));
        fs.rmSync(directory, { recursive: true });
    }
}

// A process of this program, with these arguments and `die`, acquires and ends without a word after it. When it had asked and ended.
async function dieHolding(program, given) {
    const child = fork(program, [...given, "die"]);
    let asked;
    child.on("message", (at) => (asked = at));
    const signal = await new Promise((resolve) => child.on("exit", (_, how) => resolve(how)));
    assert(signal === "SIGKILL" && asked !== undefined, "it was to die holding");
    return { asked, died: now() };
}

module.exports = { assert, contend, dieHolding, enter, eventually, now, sleep };
