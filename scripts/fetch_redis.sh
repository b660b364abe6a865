#!/usr/bin/env bash
# Prints the path of a Redis or Valkey server for the tests. Where none is installed, Debian's package is
# downloaded and unpacked into the folder FOLDER; nothing is installed.
#
#   scripts/fetch_redis.sh FOLDER
set -euo pipefail
folder=$1
for name in redis-server valkey-server; do
    if command -v "$name"; then exit 0; fi
done
program=$folder/redis-server
if [[ ! -x $program ]]; then
    "$(dirname -- "$0")/unpack_debian.sh" redis-server "$folder"
    cat >"$program" <<'SCRIPT'
#!/usr/bin/env bash
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/root
export LD_LIBRARY_PATH=$(printf '%s:' "$root"/usr/lib/*/)${LD_LIBRARY_PATH:-}
exec "$root/usr/bin/redis-server" "$@"
SCRIPT
    chmod +x "$program"
    "$program" --version >&2 || { rm -f "$program"; exit 1; }
fi
echo "$program"
