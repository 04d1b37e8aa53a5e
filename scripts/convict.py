#!/usr/bin/env python3
"""Which layer of the tests convicts which planted bug.

  scripts/convict.py check                      each bug on record by one quick test, and these tests without a bug
  scripts/convict.py hunt [--layers LAYER,…] [--bugs BUG,…] [--record FILE]
                                                runs whole layers with each bug, and writes into the record which of them fail
  scripts/convict.py layers                     the layers

A planted bug (src/planted) is a mistake that a development build can have: the environment variable LOCKKEEPER_PLANTED_BUG turns it on.
A layer is a set of tests, as `tests/README.md` describes them. With a bug on, a layer is run as it is; the layer *convicts* the bug if a
test fails twice with it and passes without it. A test that does not end counts as one that fails.

The record is tests/calibration/convictions.tsv: bug, layer, and the program and the test that fail first, or `-` if none does. A layer that
was not run with a bug has no line. `hunt` without --layers runs the quick ones; `--layers all` takes hours. It takes all bugs that have no
scenario of their own unless --bugs names some.

Exit code: 0 if each bug was convicted (hunt: by one of these layers or by one on record), 1 if not, 2 for invalid arguments.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/calibration/convictions.tsv"
VARIABLE = "LOCKKEEPER_PLANTED_BUG"

# Name, whether it is quick, and what it runs: programs with filters and further arguments. `lib` stands for the unit tests of all crates.
CALIBRATION = ["--skip", "calibration::"]
LAYERS = {
    "unit": (True, [("lib", ["--skip", "transcripts"])]),
    "golden": (True, [("pure", ["machine::"])]),
    "transcripts": (True, [("lockkeeper-raft", ["transcripts"])]),
    "formats": (True, [("pure", ["formats::", "snapshot_files::"])]),
    "parsers": (True, [("pure", ["fuzz::"])]),
    "model": (True, [("pure", ["machine_model::"])]),
    "log-store": (False, [("node", ["log_store::"])]),
    "power": (False, [("node", ["power::"])]),
    "network": (False, [("node", ["network::"])]),
    "clusters": (False, [("node", ["cluster::", "serving::", "access::", "disk::", "slow_disk::", "versions::"])]),
    "etcd": (False, [("node", ["etcd::"])]),
    "dynamodb": (False, [("node", ["dynamodb::"])]),
    "abuse": (False, [("node", ["abuse::"])]),
    "conformance": (False, [("conformance", [])]),
    "simulation": (False, [("simulation", ["fresh_seeds"])]),
}
# The preference of the check: what tells most quickly.
QUICK = ["unit", "golden", "transcripts", "formats", "parsers", "model"]
# Seconds after which a program counts as one that does not end.
PATIENCE = 240
# The same in `check`, where each test takes a second without the bug: some wait with it for what never comes.
QUICK_PATIENCE = 15
# The seeds with which `check` lets property tests draw their cases, until one finds the bug.
SEEDS = range(1, 6)
AT_ONCE = int(os.environ.get("LOCKKEEPER_TEST_THREADS", "2"))


class Program:
    """A test program, as cargo built it."""

    def __init__(self, name, executable, directory):
        self.name, self.executable, self.directory = name, executable, directory

    def run(self, bug, arguments, patience=PATIENCE, seed=None):
        """Runs tests. Returns the names of those that failed or did not end, and those that passed."""
        # The first failure says enough: none is made smaller.
        environment = os.environ | {VARIABLE: bug or "", "CARGO_MANIFEST_DIR": str(self.directory), "PROPTEST_MAX_SHRINK_ITERS": "0"}
        if seed is not None:
            environment["PROPTEST_RNG_SEED"] = str(seed)
        command = [self.executable, "--test-threads", "2", *arguments]
        process = subprocess.Popen(
            command, cwd=self.directory, env=environment, text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=patience)
            has_ended = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            has_ended = False
        failed = list(dict.fromkeys(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", output, re.M)))
        failed += [name for name in re.findall(r"^    (\S+::\S+)$", output, re.M) if name not in failed]
        passed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. ok", output, re.M)
        if not has_ended or (process.returncode not in (0, 101) and not failed):
            # It hangs, or its process has ended in the middle of a test.
            listed = subprocess.run([*command, "--list"], cwd=self.directory, env=os.environ | {VARIABLE: ""}, text=True, capture_output=True)
            begun = re.findall(r"^(\S+): test$", listed.stdout, re.M)
            failed += [name for name in begun if name not in passed and name not in failed]
        return failed, passed


def programs():
    """Builds all test programs, and returns them by name: `pure`, `node`, …; the unit tests of a crate by its name."""
    build = ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format", "json"]
    built = subprocess.run(build, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    found = {}
    for line in built.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = Path(message["manifest_path"]).parent
        kind, target = message["target"]["kind"][0], message["target"]["name"]
        name = target.replace("_", "-") if kind == "lib" else target
        if kind in ("lib", "test"):
            found[name] = Program(name, message["executable"], directory)
    return found


def bugs():
    """The names of all bugs that suites are to find."""
    text = (ROOT / "src/planted/bugs.rs").read_text()
    suites = text[text.index("    SUITES {") :]
    return re.findall(r'^ *[A-Z]\w+ = "([a-z-]+)",$', suites, re.M)


def read(path):
    """A record: the program and test, or None, by bug and layer."""
    record = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        bug, layer, test = line.split("\t")
        record[bug, layer] = None if test == "-" else test
    return record


def write(path, record):
    order = {bug: place for place, bug in enumerate(bugs())}
    layers = list(LAYERS)
    known = [(bug, layer) for bug, layer in record if bug in order and layer in LAYERS]
    lines = sorted(known, key=lambda line: (order[line[0]], layers.index(line[1])))
    path.write_text("".join(f"{bug}\t{layer}\t{record[bug, layer] or '-'}\n" for bug, layer in lines))


def has_line_of(bug, directory):
    """Whether a crate has the line that a bug changes."""
    variant = "Planted::" + "".join(word.capitalize() for word in bug.split("-"))
    return any(variant in path.read_text() for path in directory.rglob("*.rs"))


def in_layer(layer, built, bug=None):
    """The programs of a layer, each with its arguments. Of the unit tests, those of the crate that has the bug come first."""
    for name, arguments in LAYERS[layer][1]:
        if name == "lib":
            chosen = [program for program in built.values() if program.name.startswith("lockkeeper-")]
            chosen.sort(key=lambda program: not (bug and has_line_of(bug, program.directory)))
        else:
            chosen = [built[name]]
        for program in chosen:
            yield program, arguments + (CALIBRATION if program.name == "node" else [])


def convict(bug, layer, built, controls):
    """The program and the first test of a layer that fails with a bug, or None."""
    for program, arguments in in_layer(layer, built, bug):
        failed, _ = program.run(bug, arguments)
        for test in failed[:4]:
            if test in controls.get((program.name, layer), []):
                continue
            again, _ = program.run(bug, ["--exact", test])
            without, passed = program.run(None, ["--exact", test])
            if again and not without and passed:
                return f"{program.name} {test}"
    return None


def hunt(arguments):
    layers = list(LAYERS) if arguments.layers == "all" else arguments.layers.split(",") if arguments.layers else QUICK
    named = arguments.bugs.split(",") if arguments.bugs else bugs()
    unknown = [layer for layer in layers if layer not in LAYERS] + [bug for bug in named if bug not in bugs()]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; the layers are {', '.join(LAYERS)}", file=sys.stderr)
        return 2
    built = programs()
    path = Path(arguments.record)
    record = read(path)

    # What fails by itself says nothing about a bug.
    controls = {}
    for layer in layers:
        for program, filters in in_layer(layer, built):
            failed, passed = program.run(None, filters)
            controls[program.name, layer] = failed
            if failed:
                print(f"without a bug: {program.name} {' '.join(failed)}", flush=True)
            if not passed and layer != "unit":
                print(f"no test of {layer} ran in {program.name}", file=sys.stderr)
                return 1

    def one(bug):
        for layer in layers:
            began = time.monotonic()
            found = convict(bug, layer, built, controls)
            record[bug, layer] = found
            print(f"{bug:<28} {layer:<12} {time.monotonic() - began:4.0f} s  {found or '-'}", flush=True)
        write(path, record)

    with concurrent.futures.ThreadPoolExecutor(1 if arguments.alone else AT_ONCE) as pool:
        list(pool.map(one, named))
    known = read(RECORD) | record
    escaped = [bug for bug in named if not any(known.get((bug, layer)) for layer in LAYERS)]
    print(f"{len(named) - len(escaped)} of {len(named)} bugs convicted" + f"; escaped: {', '.join(escaped)}" * bool(escaped))
    return 1 if escaped else 0


def check():
    """Each bug by the first quick test on record; the same tests without a bug."""
    built, record = programs(), read(RECORD)
    cases = []
    for bug in bugs():
        tests = [record[bug, layer] for layer in QUICK if record.get((bug, layer))]
        if tests:
            program, test = tests[0].split(" ", 1)
            cases.append((bug, program, test))

    wrong = []
    for program in {program for _, program, _ in cases}:
        tests = sorted({test for _, of, test in cases if of == program})
        failed, passed = built[program].run(None, ["--exact", *tests])
        wrong += [f"without a bug, {program} {test} fails" for test in failed]
        wrong += [f"{program} has no test {test}" for test in tests if test not in passed + failed]

    # A property test draws its cases, and may miss a rare mistake with one seed. The seeds are fixed, so that the verdict is too.
    def escapes(case):
        bug, program, test = case
        for seed in SEEDS:
            failed, _ = built[program].run(bug, ["--exact", test], QUICK_PATIENCE, seed)
            if failed:
                return None
        return f"{bug} is not found by {program} {test}, with {len(SEEDS)} seeds"

    # With some of the bugs a test waits until its patience ends.
    with concurrent.futures.ThreadPoolExecutor(2 * AT_ONCE) as pool:
        wrong += filter(None, pool.map(escapes, cases))
    print("\n".join(wrong) or f"{len(cases)} planted bugs, each found by its quick test; without a bug these tests pass")
    return 1 if wrong else 0


class KeptSeeds:
    """What property tests note of a failure under a planted bug is no seed of a mistake: it is taken away again."""

    def __enter__(self):
        self.before = {path: path.read_bytes() for path in self.files()}

    def __exit__(self, *_):
        for path in self.files():
            if path in self.before:
                path.write_bytes(self.before[path])
            else:
                path.unlink()

    @staticmethod
    def files():
        found = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*proptest-regressions*/**/*.txt")]
        return [ROOT / "tests/machine_model/regressions", *found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    commands.add_parser("layers")
    hunting = commands.add_parser("hunt")
    hunting.add_argument("--layers")
    hunting.add_argument("--bugs")
    hunting.add_argument("--record", default=str(RECORD))
    hunting.add_argument("--alone", action="store_true", help="one bug at a time")
    arguments = parser.parse_args()
    if arguments.command == "layers":
        print("\n".join(f"{name}{' (quick)' * is_quick}" for name, (is_quick, _) in LAYERS.items()))
        return 0
    with KeptSeeds():
        return hunt(arguments) if arguments.command == "hunt" else check()


if __name__ == "__main__":
    sys.exit(main())
