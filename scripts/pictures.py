#!/usr/bin/env python3
"""Makes the two pictures of README.md again: the console, and a lock that outlives its leader.

    scripts/pictures.py [console] [lock]     both, if none is named

Writes .github/pictures/console.png and .github/pictures/lock.svg. Everything in them is real: a cluster of three nodes on this machine, and
what its program prints. LOCKKEEPER_BIN names the program (default: target/release/lockkeeper).

The console needs Debian's `chromium` and `chromium-driver`, and `pngquant` to make the file small. The recording needs nothing else.
"""

import base64
import contextlib
import json
import os
import pathlib
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ROOT / ".github" / "pictures"
PROGRAM = pathlib.Path(os.environ.get("LOCKKEEPER_BIN", ROOT / "target/release/lockkeeper")).resolve()
# Both stay in the history of the repository for ever.
BYTES_MAX = 150_000

# What the console shows: a ticket office in the middle of its day. Runs inside `lockkeeper dev`.
SCENE = r"""
hold() { lockkeeper lock "$1" --label "$2" --ttl 60s -- sleep 300 & }
for seat in A5 A6 B1; do hold "seats/hall-1/$seat" "till ${seat#?}"; done
hold seats/hall-2/D1 'web shop'
hold jobs/nightly batch-2
hold migrations/orders deploy-7
sleep 4
for till in 3 4; do hold seats/hall-1/A5 "till $till"; done
hold jobs/nightly batch-1
# Sales, so that the curves have something to show.
while true; do
    for row in 1 2 3; do lockkeeper lock "seats/hall-2/E$row" --label 'web shop' -- sleep 0.3 & done
    wait -n
    sleep 1
done &
lockkeeper list >/dev/null
echo "ready ${LOCKKEEPER_HTTP_ENDPOINTS%%,*}"
sleep 600
"""

CURVES_SECONDS = 40
OPEN_FOLDERS = "document.querySelectorAll('[aria-expanded=false]').forEach(fold => fold.click())"

# What is recorded: what is typed, and how long the reader looks before the next line, in seconds.
STEPS = [
    ("lockkeeper lock seats/A5 -- sh -c 'echo \"selling A5, token $LOCKKEEPER_TOKEN\"; sleep $SALE; echo \"A5 is sold\"' &", 2.0),
    ("lockkeeper member list", 2.5),
    ("scripts/cluster.sh kill leader", 1.5),
    ("lockkeeper check seats/A5 1", 2.0),
    ("lockkeeper lock seats/A5 --try -- echo mine", 2.0),
    ("lockkeeper lock seats/B7 -- sh -c 'echo \"selling B7, token $LOCKKEEPER_TOKEN\"'", 2.0),
    ("lockkeeper member list", 2.5),
    ("wait", 3.0),
]
COLUMNS = 112


def environment(**more):
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "LOCKKEEPER_BIN": str(PROGRAM), "COLUMNS": str(COLUMNS), **more}


def end(process):
    """Ends it and what it started."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


class Browser:
    """A window without a screen, driven by the WebDriver protocol."""

    def __init__(self, profile):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={self.url.split(':')[-1]}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        arguments += [f"--user-data-dir={profile}", "--window-size=1280,1000"]
        options = {"alwaysMatch": {"goog:chromeOptions": {"binary": "/usr/bin/chromium", "args": arguments}}}
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.url += f"/session/{self.ask('POST', '/session', {'capabilities': options})['sessionId']}"
                return
            time.sleep(0.1)
        sys.exit("pictures.py: chromedriver does not answer")

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def run(self, script):
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})


def console():
    target = PICTURES / "console.png"
    with tempfile.TemporaryDirectory() as place:
        command = [PROGRAM, "dev", "--", "bash", "-c", SCENE]
        cluster = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        browser = None
        try:
            url = next(line.split()[1] for line in cluster.stdout if line.startswith("ready "))
            browser = Browser(f"{place}/profile")
            browser.ask("POST", "/window/rect", {"width": 1280, "height": 1000})
            browser.ask("POST", "/url", {"url": f"{url}/"})
            # The curves need some time to show something.
            time.sleep(CURVES_SECONDS)
            for _ in range(2):
                browser.run(OPEN_FOLDERS)
                time.sleep(3)
            picture = pathlib.Path(place) / "console.png"
            picture.write_bytes(base64.b64decode(browser.ask("GET", "/screenshot")))
            subprocess.run(["pngquant", "--force", "--strip", "--speed=1", "64", f"--output={target}", picture], check=True)
        finally:
            if browser:
                end(browser.driver)
            end(cluster)
    report(target)


def record(steps, variables):
    """Types the steps into a shell; each line that appears, with its time."""
    events = []
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile"], env=variables, cwd=ROOT, stdin=subprocess.PIPE, stdout=slave, stderr=slave,
        start_new_session=True, text=True,
    )  # fmt: skip
    os.close(slave)
    began = time.monotonic()
    unfinished = ""

    def listen(seconds, until=None):
        nonlocal unfinished
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([master], [], [], left)[0]:
                break
            unfinished += os.read(master, 65536).decode().replace("\r", "")
            *lines, unfinished = unfinished.split("\n")
            for line in lines:
                if line == until:
                    return
                events.append((time.monotonic() - began, line))
        assert until is None, f"no end of a step within {seconds} s: {events}"

    try:
        for number, (step, pause) in enumerate(steps):
            events.append((time.monotonic() - began, f"$ {step}"))
            shell.stdin.write(f"{step}\necho step-{number}\n")
            shell.stdin.flush()
            listen(60, until=f"step-{number}")
            listen(pause)
    finally:
        end(shell)
        os.close(master)
    return events


def drawing(events):
    """The terminal as a picture whose lines appear at their times, again and again. No script: it moves where pictures may."""
    total = events[-1][0] + 4
    line_height, left, top = 19, 14, 46
    width, height = left * 2 + round(COLUMNS * 7.83), top + line_height * len(events) + 8
    rules, lines = [], []
    for number, (when, text) in enumerate(events):
        share = 100 * when / total
        rules.append(f"@keyframes l{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        kind = "c" if text.startswith("$ ") else "o"
        y = top + line_height * number
        style = f"animation:l{number} {total:.1f}s infinite"
        lines.append(f'<text class="{kind}" x="{left}" y="{y}" style="{style}" xml:space="preserve">{escape(text)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>A lock outlives its leader</title>",
        "<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6deeb}.c{fill:#7fdbca}",
        *rules,
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#011627"/>',
        '<circle cx="20" cy="18" r="5" fill="#ff5f56"/><circle cx="38" cy="18" r="5" fill="#ffbd2e"/>'
        '<circle cx="56" cy="18" r="5" fill="#27c93f"/>',
        *lines,
        "</svg>",
        "",
    ])  # fmt: skip


def lock():
    target = PICTURES / "lock.svg"
    with tempfile.TemporaryDirectory() as data:
        endpoints = ",".join(f"127.0.0.1:{port}" for port in (7101, 7102, 7103))
        variables = environment(LOCKKEEPER_DATA=data, LOCKKEEPER_ENDPOINTS=endpoints, SALE="18", NO_COLOR="1")
        cluster = ROOT / "scripts" / "cluster.sh"
        subprocess.run([cluster, "up"], env=variables, check=True, stdout=subprocess.DEVNULL)
        try:
            events = record(STEPS, variables)
        finally:
            subprocess.run([cluster, "down"], env=variables, check=True, stdout=subprocess.DEVNULL)
    # What is typed is shown as a reader would type it.
    events = [(when, text.replace("$SALE", "18")[:COLUMNS]) for when, text in events if text]
    assert any("A5 is sold" in text for _, text in events), f"the holder lost its lock: {events}"
    target.write_text(drawing(events))
    report(target)


def report(target):
    size = target.stat().st_size
    print(f"{target.relative_to(ROOT)}: {size} bytes")
    assert size <= BYTES_MAX, f"more than {BYTES_MAX} bytes"


def main():
    wanted = sys.argv[1:] or ["console", "lock"]
    if unknown := set(wanted) - {"console", "lock"}:
        sys.exit(f"pictures.py: there is no picture {json.dumps(sorted(unknown))}: console, lock")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        {"console": console, "lock": lock}[name]()


main()
