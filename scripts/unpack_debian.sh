#!/usr/bin/env bash
# Downloads a Debian package and those of its dependencies that are not installed, and unpacks them into the
# folder FOLDER/root, which is emptied first; nothing is installed.
#
#   scripts/unpack_debian.sh PACKAGE FOLDER
set -euo pipefail
package=$1 folder=$2
command -v apt-get >/dev/null && command -v dpkg >/dev/null || {
    echo "unpack_debian.sh: $package is not installed, and there is no apt-get to download it" >&2
    exit 1
}
rm -rf "$folder"
mkdir -p "$folder/packages"
download() {
    local packages
    packages=$(apt-get install --simulate --no-install-recommends "$package" |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    [[ -n $packages ]] || return 1
    # shellcheck disable=SC2086
    (cd "$folder/packages" && apt-get download --quiet $packages)
}
if ! download >&2; then
    [[ $(id -u) == 0 ]] && apt-get update --quiet >&2 && download >&2
fi
for file in "$folder"/packages/*.deb; do
    dpkg -x "$file" "$folder/root"
done
rm -rf "$folder/packages"
