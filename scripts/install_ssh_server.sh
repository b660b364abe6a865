#!/usr/bin/env bash
# Installs Debian's openssh-server for the tests of `starling launch`, where it is missing and this is
# root. The service is not started: tests start a server of their own.
#
#   scripts/install_ssh_server.sh
set -euo pipefail
if [[ -x /usr/sbin/sshd ]]; then exit 0; fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "install_ssh_server.sh: sshd is not installed, and it takes root and apt-get to install it" >&2
    exit 1
fi
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --quiet --yes --no-install-recommends openssh-server >&2; }
install || { apt-get update --quiet >&2 && install; }
