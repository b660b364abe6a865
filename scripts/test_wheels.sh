#!/usr/bin/env bash
# Builds the Python packages and installs them into two virtual environments for tests/wheels.rs:
#
#   FOLDER/dist    the wheels
#   FOLDER/envs    starling-rl, with gymnasium, what its wrappers import, and onnxruntime
#   FOLDER/train   both packages, with torch (4.6 GB), Stable-Baselines3, onnxruntime and what CleanRL's
#                  script for EnvPool imports; only with --train
#   FOLDER/ppo_atari_envpool.py   that script, from CleanRL's wheel
#
# Usage: scripts/test_wheels.sh FOLDER [--train]. What is installed already is kept.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
folder=$1
train=${2:-}
mkdir -p "$folder"

# environment NAME PACKAGE…: a virtual environment with packages of others.
environment() {
    local name=$1
    shift
    [[ $(cat "$folder/$name/packages" 2>/dev/null) == "$*" ]] && return
    rm -rf "${folder:?}/$name"
    python3 -m venv "$folder/$name"
    "$folder/tools/bin/uv" pip install --quiet --python "$folder/$name/bin/python" "$@"
    echo "$*" >"$folder/$name/packages"
}

# ours NAME WHEEL…: our wheels as they are now, and nothing that they would need besides.
ours() {
    local name=$1
    shift
    "$folder/tools/bin/uv" pip install --quiet --python "$folder/$name/bin/python" --reinstall \
        --no-deps "$@"
    "$folder/tools/bin/uv" pip check --quiet --python "$folder/$name/bin/python"
}

# uv installs torch in seconds.
if [[ ! -x $folder/tools/bin/uv ]]; then
    python3 -m venv "$folder/tools"
    "$folder/tools/bin/python" -m pip install --quiet uv==0.13.7
fi
rm -rf "$folder/dist"
python3 "$here/scripts/build_wheels.py" ${train:+--train} --out "$folder/dist" >&2
environment envs gymnasium==1.4.0 numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1 \
    opencv-python-headless==4.14.0.94 array-api-compat==1.16.0
ours envs "$folder"/dist/starling_rl-*.whl
[[ -n $train ]] || exit 0
environment train gymnasium==1.4.0 torch==2.11.0 stable-baselines3==2.9.2 gym==0.23.1 \
    tensorboard==2.21.0 numpy==2.4.6 onnxruntime==1.31.1 array-api-compat==1.16.0
ours train "$folder"/dist/starling_rl-*.whl "$folder"/dist/starling_rl_train-*.whl
if [[ ! -f $folder/ppo_atari_envpool.py ]]; then
    "$folder/tools/bin/python" -m pip download --quiet --no-deps --only-binary=:all: \
        --python-version 3.10 --dest "$folder/cleanrl" cleanrl==1.2.0
    "$folder/tools/bin/python" -c 'import pathlib, sys, zipfile
wheel, to = sys.argv[1:]
script = zipfile.ZipFile(wheel).read("cleanrl/ppo_atari_envpool.py")
pathlib.Path(to).write_bytes(script)' "$folder"/cleanrl/*.whl "$folder/ppo_atari_envpool.py"
fi
