#!/usr/bin/env bash
# Compiles what run.sh needs, on any machine with Kaon's compiler and NVRTC; no GPU.
#   usage: benchmarks/gpu/pack.sh [--fake] [--arch sm_90a,...]
# Writes build/gpu-pack (packages, and the weights of a training run on the CPU), and build/gpu-pack.tar.gz, which is that together with
# the sources of the runtime and of the script: unpack it anywhere and call its benchmarks/gpu/run.sh. With --fake: build/gpu-pack-fake and
# build/gpu-pack-fake.tar.gz, tiny, with an imitated driver and the kernels for it. PYTHON and PYTHONPATH say which Kaon compiles.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
limit=$((64 << 20))
name=gpu-pack
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --fake) name=gpu-pack-fake; options+=(--fake) ;;
    --arch) options+=(--arch "$2"); shift ;;
    *) echo "pack.sh: expects --fake or --arch LIST, but got '$1'" >&2; exit 2 ;;
  esac
  shift
done
pack=${KAON_GPU_PACK:-$root/build/$name}

# Results are worth nothing without what they were made of.
commit=$(git -C "$root" rev-parse HEAD)
git -C "$root" diff --quiet HEAD -- || commit="$commit with uncommitted changes"

mkdir -p "$pack"
export PYTHONPATH=$root/benchmarks:${PYTHONPATH:-$root/build/dev/python}
"$python" -m gpu.pack "$pack" --commit "$commit" "${options[@]}"

# What the script needs beside the packages: the runtime's sources, the Python package and itself.
tarball=$pack.tar.gz
git -C "$root" ls-files -z CMakeLists.txt cmake runtime python pyproject.toml README.md benchmarks/gpu benchmarks/timing.py |
  tar -C "$root" --null -T - --transform "s,^,kaon-gpu/," -cf "$pack.tar"
tar -C "$pack/.." --transform "s,^$(basename "$pack"),kaon-gpu/build/$name," -rf "$pack.tar" "$(basename "$pack")"
gzip -9 -c "$pack.tar" > "$tarball"
rm "$pack.tar"
bytes=$(stat -c %s "$tarball")
echo "$tarball: $((bytes >> 10)) KiB" >&2
if [ "$bytes" -gt "$limit" ]; then
  echo "pack.sh: expects at most $((limit >> 20)) MiB, but got $((bytes >> 20)) MiB" >&2
  exit 1
fi
