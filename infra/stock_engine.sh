#!/usr/bin/env bash
# Installs the extra pivotopd[alfworld]: the stock ALFWorld engine, which the native one is compared with.
# Usage: bash infra/stock_engine.sh [PYTHON]     (default: .venv/bin/python)
#
# fast-downward-textworld comes as source only and takes minutes to compile, so its wheel is built once and
# kept in $PIVOTOPD_WHEELS (default: ${XDG_CACHE_HOME:-~/.cache}/pivotopd/wheels). The wheel holds a library of
# this platform although its tag says "any": the folder has one subfolder per platform and must not be shared.
# The compiler's log lies beside it. Needs g++, cmake and make.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-.venv/bin/python}
version=20.6.4
if ! "$python" -m pip --version >/dev/null 2>&1; then
  echo "stock_engine: '$python' is no Python with pip. Run 'make install' first, or name one." >&2
  exit 2
fi
platform=$("$python" -c 'import sys, sysconfig; print(f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}")')
wheels=${PIVOTOPD_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/pivotopd/wheels}/$platform
mkdir -p "$wheels"

constraints=()
if [[ -f requirements.lock ]]; then
  constraints=(-c requirements.lock)
fi

built=("$wheels"/fast_downward_textworld-"$version"-*.whl)
if [[ ! -f ${built[0]} ]]; then
  for tool in g++ cmake make; do
    command -v "$tool" >/dev/null || { echo "stock_engine: $tool is missing; it compiles the planner." >&2; exit 2; }
  done
  echo "stock_engine: building fast-downward-textworld $version once, about five minutes; log: $wheels/build.log"
  # Built aside and moved in one piece, so that an interrupted build leaves no broken wheel behind.
  building=$(mktemp -d "$wheels/building.XXXXXX")
  trap 'rm -rf "$building"' EXIT
  if ! "$python" -m pip wheel --no-deps --no-cache-dir --disable-pip-version-check --verbose \
      --wheel-dir "$building" "fast-downward-textworld==$version" >"$wheels/build.log" 2>&1; then
    tail -n 20 "$wheels/build.log" >&2
    echo "stock_engine: the build failed; the whole log is $wheels/build.log" >&2
    exit 1
  fi
  mv "$building"/fast_downward_textworld-"$version"-*.whl "$wheels"/
fi

"$python" -m pip install --quiet --disable-pip-version-check "${constraints[@]}" --find-links "$wheels" \
  "fast-downward-textworld==$version" -e '.[alfworld]'
"$python" -c '
from pivotopd.environments.alfworld.stock import packages
print("stock_engine: installed, alfworld", packages().version)'
