#!/bin/sh
# Make the environments of the libraries that `make bench-peers` compares with, where they are not
# there yet or their requirements have changed.
# usage: tools/peers.sh PYTHON FOLDER
set -eu

python=$1
folder=$2

make_one() {
    lock=requirements/peers-$1.txt
    into=$folder/$1
    if cmp -s "$lock" "$into/.ready"; then return; fi
    echo "Making $into ($lock): some minutes, once."
    rm -rf "$into"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --python "$python" "$into"
        uv pip install --quiet --python "$into/bin/python" -r "$lock"
    else
        "$python" -m venv "$into"
        "$into/bin/python" -m pip install -qq --disable-pip-version-check -r "$lock"
    fi
    cp "$lock" "$into/.ready"
}

make_one tensorflow
make_one torch
