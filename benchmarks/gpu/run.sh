#!/usr/bin/env bash
# Proves the CUDA target on a card, in at most 8 minutes: builds the runtime without a compiler, then correctness, a training run,
# compute-sanitizer and timings. Needs torch, Triton, cmake, ninja and pybind11; no LLVM, no NVRTC, no network.
#   usage: benchmarks/gpu/run.sh [--out DIR] [--only SECTIONS] [--seconds N]     on a card, with build/gpu-pack from pack.sh
#          benchmarks/gpu/run.sh --fake --out DIR                                anywhere, with build/gpu-pack-fake from pack.sh --fake
# Results: correctness.json, training.json, sanitizer.json, timings.json in DIR (default: $OUT, else build/gpu-results).
set -euo pipefail
started=$SECONDS
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
pack=$root/build/gpu-pack
out=${OUT:-$root/build/gpu-results}
seconds=470
options=()
while [ $# -gt 0 ]; do
  case $1 in
    # Triton asks when it is imported whether it is to interpret.
    --fake) pack=$root/build/gpu-pack-fake; options+=(--fake); export TRITON_INTERPRET=1 ;;
    --out) out=$2; shift ;;
    --only) options+=(--only "$2"); shift ;;
    --seconds) seconds=$2; shift ;;
    *) echo "run.sh: expects --fake, --out DIR, --only SECTIONS or --seconds N, but got '$1'" >&2; exit 2 ;;
  esac
  shift
done
pack=${KAON_GPU_PACK:-$pack}
if [ ! -f "$pack/training.pt" ]; then
  echo "run.sh: expects packages in $pack: make them with benchmarks/gpu/pack.sh, on any machine" >&2
  exit 1
fi

build=${KAON_GPU_BUILD:-$root/build/gpu-runtime}
echo "run.sh: building the runtime" >&2
cmake -E make_directory "$build"
{
  cmake -S "$root" -B "$build" -G Ninja -DKAON_COMPILER=OFF -DPython_EXECUTABLE="$(command -v "$python")" &&
    ninja -C "$build" KaonExtension
} >"$build/build.log" 2>&1 || { cat "$build/build.log" >&2; echo "run.sh: cannot build the runtime" >&2; exit 1; }
echo "run.sh: built in $((SECONDS - started)) s" >&2

export PYTHONPATH=$build/python:$root/benchmarks
export KAON_CACHE=0
# The program ends by itself in time; should it hang, it is ended.
exec timeout $((seconds + 10 - (SECONDS - started))) "$python" -m gpu.main "$pack" --out "$out" --seconds $((seconds - (SECONDS - started))) "${options[@]}"
