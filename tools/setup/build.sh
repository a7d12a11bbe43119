#!/usr/bin/env bash
# Configures and builds one CMake preset. usage: tools/setup/build.sh PRESET PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
preset=$1 python=$(realpath -s "$2")
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# A precompiled header carries time stamps that ccache must not take for a change.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
log=build/configure-$preset.log
mkdir -p build
cmake --preset "$preset" -DPython_EXECUTABLE="$python" >"$log" 2>&1 || {
  cat "$log" >&2
  echo "build: configuring failed: see $log" >&2
  exit 1
}
cmake --build --preset "$preset"
