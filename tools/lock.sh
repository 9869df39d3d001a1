#!/bin/sh
# Compile the locked requirements from pyproject.toml. Python 3.11 has a file of its own, since
# the newer jax needs 3.12.
set -eu
cd "$(dirname "$0")/.."

command -v uv >/dev/null 2>&1 || {
    echo "make lock needs uv: python3 -m pip install uv" >&2
    exit 1
}

for version in 3.11 3.12; do
    # "fewest": one version of a package for all Pythons from $version on.
    uv pip compile pyproject.toml --extra examples --group dev \
        --python-version "$version" --universal --fork-strategy fewest \
        --upgrade --quiet --no-emit-package replicax --custom-compile-command "make lock" \
        --output-file "requirements/py$(echo "$version" | tr -d .).txt"
done
