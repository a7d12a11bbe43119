#!/usr/bin/env bash
# Installs what Kaon needs to build and run on Debian 12: Debian packages, then pinned Python packages in a virtual environment.
# A second call does only what changed. Every failure is one line that says what is missing and what to do.
#
# usage: tools/setup/install.sh            (root, or sudo for the Debian packages)
# environment: KAON_VENV   an existing virtual environment to use instead of .venv; what it lacks is added, nothing in it is changed
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tools/setup
log=build/setup.log
mkdir -p build
: >"$log"

fail() {
  echo "setup: $*" >&2
  exit 1
}

require_space() { # directory, GiB, purpose
  local free
  free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$free" -ge "$2" ] || fail "$3 needs $2 GiB free in $1, but only $free GiB are free"
}

missing_debian_packages() {
  local package
  grep -vE '^(#|$)' $here/debian-packages.txt | while read -r package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    command -v sudo >/dev/null || fail "installing Debian packages needs root or sudo: $(echo $packages)"
    sudo "$@"
  fi
}

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
  fail "expects Debian 12 (apt-get and dpkg-query), but found $(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-an unknown system}")"

packages=$(missing_debian_packages)
python=$(command -v python3) || fail "expects python3 on PATH"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "expects Python 3.11 or newer, but $python is $("$python" -V 2>&1)"
venv=${KAON_VENV:-.venv}
if [ ! -x "$venv/bin/python" ]; then
  # Debian splits these two from python3; other builds of Python bring them along.
  "$python" -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
  "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    packages="$packages python3-dev"
fi
if [ -n "${packages// /}" ]; then
  require_space /usr 3 "installing LLVM and the build tools"
  echo "setup: installing Debian packages:" $packages
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get update -qq >>"$log" 2>&1 || fail "apt-get update failed (no network?): see $log"
  for package in $packages; do
    [ -n "$(apt-cache madison "$package")" ] ||
      fail "no Debian package $package is available: Kaon needs LLVM/MLIR 22.1 from Debian 12 with its security suite (bookworm-security)"
  done
  as_root apt-get install -y -qq --no-install-recommends $packages >>"$log" 2>&1 ||
    fail "apt-get install failed ($(tail -n 1 "$log")): see $log"
fi
version=$(llvm-config-22 --version 2>/dev/null || echo none)
case $version in
22.1.*) ;;
*) fail "expects LLVM 22.1 (llvm-config-22), but found $version" ;;
esac

if [ ! -x "$venv/bin/python" ]; then
  [ -z "${KAON_VENV:-}" ] || fail "KAON_VENV names $KAON_VENV, but there is no bin/python in it"
  require_space . 8 "the Python environment (torch brings CUDA libraries along)"
  echo "setup: creating $venv"
  "$python" -m venv "$venv" >>"$log" 2>&1 || fail "creating $venv failed: see $log"
fi
needed=$("$venv/bin/python" $here/missing_packages.py ${KAON_VENV:+--existing}) || exit 1
if [ -n "$needed" ]; then
  require_space "$venv" 6 "installing Python packages"
  echo "setup: installing Python packages:" $needed
  "$venv/bin/python" -m pip install -q --disable-pip-version-check $needed >>"$log" 2>&1 ||
    fail "pip install failed ($(grep -v '^$' "$log" | tail -n 1)): see $log"
fi
