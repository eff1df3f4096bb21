#!/usr/bin/env bash
# SLURM's programs for the tests, from Debian's or Ubuntu's packages; does nothing where they are there already.
# Nothing is started and no configuration is written: infra/slurm/one_node.sh does that in a folder of its own.
set -euo pipefail

missing=()
for program in sbatch srun squeue scancel scontrol slurmctld slurmd munged; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("$program")
done
if ((${#missing[@]} == 0)); then
  echo "SLURM is here: $(PATH="$PATH:/usr/sbin:/sbin" slurmd -V)"
elif [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurm-wlm slurmctld slurmd slurm-client munge
else
  echo "missing: ${missing[*]}; as root: apt-get install slurm-wlm munge" >&2
  exit 2
fi
