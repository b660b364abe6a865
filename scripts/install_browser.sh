#!/usr/bin/env bash
# Installs what the dashboard's test needs: Chromium (Debian's package, as root) and playwright-core, which
# drives it, into the folder given. Does nothing if both are there.
set -euo pipefail
folder=$1

install() { # install COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 && return
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null 2>&1; then
        echo "$1 is missing; install the package $2" >&2
        exit 1
    fi
    [[ -n ${updated:-} ]] || apt-get update -qq
    updated=1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}

install chromium chromium
install node nodejs
if [[ ! -d $folder/node_modules/playwright-core ]]; then
    install npm npm
    mkdir -p "$folder"
    npm install --prefix "$folder" --no-audit --no-fund --silent playwright-core@1.65.0
fi
