#!/usr/bin/env bash
# Installs Debian's Slurm and munge for the tests of `starling launch --print slurm`, where they are
# missing and this is root. No service is started: tests start a cluster of their own.
#
#   scripts/install_slurm.sh
set -euo pipefail
missing=
for program in slurmctld slurmd sbatch munged; do
    command -v "$program" >/dev/null || missing=$program
done
if [[ -z $missing ]]; then exit 0; fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "install_slurm.sh: $missing is not installed, and it takes root and apt-get to install it" >&2
    exit 1
fi
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get install --quiet --yes --no-install-recommends slurmctld slurmd slurm-client munge >&2
}
install || { apt-get update --quiet >&2 && install; }
