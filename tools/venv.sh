#!/bin/sh
# Make, or make anew, a virtual environment with the locked requirements and replicax itself.
# usage: tools/venv.sh PYTHON FOLDER
set -eu

python=$1
folder=$2

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d %d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "PYTHON=$python does not run." "Name an interpreter that does: make TARGET PYTHON=python3.12"
minor=${version#3 }
case $version in
"3 "*) [ "$minor" -ge 11 ] || minor='' ;;
*) minor='' ;;
esac
[ -n "$minor" ] ||
    fail "Replicax needs Python 3.11 or newer; $python is Python ${version% *}.${version#* }." \
        "Name a newer one: make TARGET PYTHON=python3.12"

if [ -e "$folder" ]; then
    [ -f "$folder/pyvenv.cfg" ] ||
        fail "VENV=$folder exists and is no virtual environment; it is left as it is." \
            "Name another folder: make TARGET VENV=.venv"
    rm -rf "$folder"
fi

if [ "$minor" -eq 11 ]; then lock=requirements/py311.txt; else lock=requirements/py312.txt; fi
echo "Making $folder (Python 3.$minor, $lock): a minute or two, once."

with_uv() {
    command -v uv >/dev/null 2>&1 &&
        uv venv --quiet --clear --python "$("$python" -c 'import sys; print(sys.executable)')" "$folder" &&
        uv pip install --quiet --python "$folder/bin/python" -r "$lock" &&
        uv pip install --quiet --python "$folder/bin/python" --no-deps --no-build-isolation --editable .
}

with_pip() {
    rm -rf "$folder"
    "$python" -m venv "$folder" ||
        fail "$python cannot make virtual environments (Debian: apt install python3-venv)."
    set -- "$folder/bin/python" -m pip install -qq --disable-pip-version-check
    "$@" --no-compile -r "$lock"  # Python compiles what is used.
    "$@" --no-deps --no-build-isolation --editable .
}

with_uv || with_pip
touch "$folder/.ready"
