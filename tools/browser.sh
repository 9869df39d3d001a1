#!/usr/bin/env bash
# Installs a headless browser for the tests of HTML pages, where that is possible: Debian, as root.
# Without one these tests are skipped, and say so.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tools/browser.sh: no Chromium, and no right to install one: pages are not opened in tests"
    exit 0
fi
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium \
    || echo "tools/browser.sh: Chromium could not be installed: pages are not opened in tests"
