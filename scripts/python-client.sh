#!/usr/bin/env bash
# The Python client (src/clients/python): builds the wheel, lints it, checks its types, and tests what the wheel installs on a real cluster.
#
#     scripts/python-client.sh            all of it, and the weight of the wheel and of what it installs
#     scripts/python-client.sh --venv     only makes the environment with the package in it, and prints the path of its python
#
#     PYTHON=python3.10                   another interpreter (from 3.10 on)
#     LOCKKEEPER_PROGRAM=…                the program under test; by default it is built
#
# Needs PyPI; packages are installed into the build directory, in the versions of requirements-dev.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONPATH

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
source=$PWD/src/clients/python
version=$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
place=$target/python-client/$version
python=$place/venv/bin/python

# run COMMAND…: its output is for people; stdout belongs to --venv and to the weights.
run() {
    echo "+ $*" >&2
    "$@" >&2
}

# The packages of others, once; they are complete if the copy of their list is there.
wanted=$(cat "$source"/requirements.txt "$source"/requirements-dev.txt)
if [[ ! -x $python || $(cat "$place/installed" 2>/dev/null) != "$wanted" ]]; then
    run "${PYTHON:-python3}" -m venv --clear "$place/venv"
    run "$python" -m pip install --quiet --disable-pip-version-check -r "$source/requirements-dev.txt"
    echo "$wanted" >"$place/installed"
fi

rm -rf "$place/dist"
run "$python" -m build --quiet --no-isolation --wheel --outdir "$place/dist" "$source"
wheel=$(echo "$place"/dist/*.whl)
run "$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
if [[ ${1:-} == --venv ]]; then
    echo "$python"
    exit 0
fi

if [[ -z ${LOCKKEEPER_PROGRAM:-} ]]; then
    run cargo build --locked --bin lockkeeper
    LOCKKEEPER_PROGRAM=$target/debug/lockkeeper
fi
export LOCKKEEPER_PROGRAM

# Tools and tests run on a copy without the package, so that they see what the wheel installs.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r "$source"/. "$tree"
run "$python" -m ruff format --check "$tree"
run "$python" -m ruff check --no-cache "$tree"
(cd "$tree" && run "$python" -m mypy --cache-dir "$place/mypy" lockkeeper hatch_build.py)
(cd "$tree" && run "$python" -m pyright --pythonpath "$python")
rm -rf "$tree/lockkeeper"
(cd "$tree" && run "$python" -m mypy --cache-dir "$place/mypy-tests" tests recipes driver.py chaos.py figures)
(cd "$tree" && run "$python" -m pytest -q)

installed=$("$python" -c 'import lockkeeper, pathlib; print(pathlib.Path(lockkeeper.__file__).parent)')
find "$installed" -name __pycache__ -prune -exec rm -rf {} +
echo "the wheel has $(stat -c %s "$wheel") bytes; installed it has $(du -sb "$installed" | cut -f1), and with grpcio and protobuf" \
    "$(du -sbc "$installed" "$(dirname "$installed")"/{grpc,google} | tail -1 | cut -f1)"
