#!/usr/bin/env bash
# Packs the program so that it runs on another machine without the checkout, Rust or Python:
#
#   scripts/release.sh [--program FILE] [--small] [FOLDER]
#
# writes starling-VERSION-SYSTEM.tar.gz and its SHA-256 into FOLDER (default: target/release-archives).
# The archive has the stripped program, libtorch's libraries for the CPU, presets (inside the program) and
# the licences of everything. --small leaves libtorch out; scripts/fetch_libtorch.py in the archive fetches it, or
# links an installed torch (with CUDA's libraries, for a GPU).
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
program='' small='' into=''
while (($#)); do
    case $1 in
        --program) program=$2; shift ;;
        --small) small=-small ;;
        -*) echo "release.sh: unknown option $1" >&2; exit 2 ;;
        *) into=$1 ;;
    esac
    shift
done
into=${into:-$target/release-archives}
if [[ -z $program ]]; then
    "$here/starling" --version >&2
    program=$target/release/starling
fi
lib=$here/.libtorch/lib
[[ -f $lib/libtorch_cpu.so ]] || {
    echo "release.sh: .libtorch is missing; ./starling makes it" >&2
    exit 1
}

version=$(LD_LIBRARY_PATH=$lib "$program" --version | cut -d ' ' -f 2)
name=starling-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)$small
mkdir -p "$into"
staging=$(mktemp -d "$into/.staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT
root=$staging/$name

# As in a checkout: the program looks for .libtorch two folders above its own.
mkdir -p "$root/program/bin" "$root/scripts" "$root/licenses"
strip -o "$root/program/bin/starling" "$program"
chmod 755 "$root/program/bin/starling"
ln -s program/bin/starling "$root/starling"
cp "$here/scripts/fetch_libtorch.py" "$root/scripts/"
cp "$here/LICENSE-APACHE" "$here/LICENSE-MIT" "$root/"
if [[ -z $small ]]; then
    mkdir -p "$root/.libtorch/lib"
    # What the program and libtorch need to start; CUDA's own libraries only where they are linked in.
    for library in libtorch_cpu.so libc10.so libgomp.so.1 libcudart.so.13 libcupti.so.13; do
        [[ ! -e $lib/$library ]] || cp --dereference "$lib/$library" "$root/.libtorch/lib/"
    done
    cp "$lib/libtorch.so" "$root/.libtorch/lib/"
    echo "the archive $name" >"$root/.libtorch/source"
    if [[ -d $here/.libtorch/licenses ]]; then
        cp -r "$here/.libtorch/licenses" "$root/licenses/libtorch"
    else
        echo "release.sh: .libtorch has no licence texts (it was made by an older version of" \
            "scripts/fetch_libtorch.py). Remove it and run ./starling before you give the archive away." >&2
    fi
fi
(cd -- "$here" && cargo metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-gnu) |
    python3 "$here/scripts/collect_licenses.py" "$root/licenses"

# The newest symbol of the C library that is used: older systems cannot run the program.
glibc=$(readelf --version-info --wide "$program" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
cat >"$root/README.txt" <<TEXT
Starling $version for $(uname -s) on $(uname -m), with a C library of at least ${glibc/_/ } (ldd --version).

    ./starling train CartPole-v1
    ./starling --help

Move the folder anywhere, and link or call the file starling in it.
$(if [[ -n $small ]]; then
    echo "Before the first start: python3 scripts/fetch_libtorch.py (downloads 0.55 GB with pip)."
else
    echo "It has libtorch for the CPU."
fi)
For a GPU, or for a torch 2.11.0 that is installed already, link its libraries:
    python3 scripts/fetch_libtorch.py FOLDER   (such as …/site-packages/torch)

Atari ROMs, MuJoCo and Python environments need Python 3 with pip: see ./starling doctor.
Licences: LICENSE-MIT or LICENSE-APACHE; those of the libraries are in the folder licenses.
TEXT

tar --create --directory "$staging" --owner 0 --group 0 --numeric-owner --sort name "$name" |
    gzip -1 >"$staging/$name.tar.gz"
mv "$staging/$name.tar.gz" "$into/"
(cd -- "$into" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "$into/$name.tar.gz"
