#!/usr/bin/env bash
# Prints the path of mpirun for the tests. Where none is installed, Debian's packages of Open MPI are
# downloaded and unpacked into the folder FOLDER; nothing is installed.
#
#   scripts/fetch_mpi.sh FOLDER
set -euo pipefail
folder=$1
if command -v mpirun; then exit 0; fi
program=$folder/mpirun
if [[ ! -x $program ]]; then
    "$(dirname -- "$0")/unpack_debian.sh" openmpi-bin "$folder"
    # Open MPI finds its plugins and texts by its prefix.
    cat >"$program" <<'SCRIPT'
#!/usr/bin/env bash
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/root
library=$(dirname -- "$(find "$root/usr/lib" -name 'libmpi.so.40' -print -quit)")
export OPAL_PREFIX=$root/usr OPAL_LIBDIR=$library OPAL_PKGDATADIR=$root/usr/share/openmpi
export OPAL_PKGLIBDIR=$library/openmpi/lib/openmpi3 OPAL_SYSCONFDIR=$root/etc
export PMIX_INSTALL_PREFIX=$library/pmix2 PMIX_MCA_pcompress_base_silence_warning=1
export LD_LIBRARY_PATH=$library:${library/usr\/lib/lib}:${LD_LIBRARY_PATH:-}
exec "$root/usr/bin/mpirun.openmpi" "$@"
SCRIPT
    chmod +x "$program"
    "$program" --version >&2 || { rm -f "$program"; exit 1; }
fi
echo "$program"
