#!/usr/bin/env bash
# A SLURM of one node on the loopback interface, in a folder of its own, for tests and to try things out.
#
#   bash infra/slurm/one_node.sh start DIR     # then: export SLURM_CONF=DIR/slurm.conf
#   bash infra/slurm/one_node.sh stop DIR
#
# No accounting, no cgroups, no systemd; own key, ports and log files, so that several can run side by side.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
action=${1:-}
dir=$(realpath -m "${2:?usage: one_node.sh start|stop DIR}")

free_port() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 20000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
  echo "no free port" >&2
  return 2
}

write_configuration() {
  local host cpus memory_mb user
  host=$(hostname -s)
  user=$(id -un)
  cpus=$(nproc --all) # nproc alone follows OMP_NUM_THREADS
  memory_mb=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1024 * 9 / 10))
  cat >"$dir/slurm.conf" <<CONF
ClusterName=box
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# A requeued job waits until its old credential has expired: seconds here, two minutes by default.
AuthInfo=socket=$dir/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
JobRequeue=1
KillWait=${SLURM_KILL_WAIT_S:-15}
MinJobAge=${SLURM_MIN_JOB_AGE_S:-300}
SlurmctldTimeout=30
SlurmdTimeout=30
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory_mb State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
}

start() {
  mkdir -p "$dir/state" "$dir/spool"
  chmod 755 "$dir"
  if [[ ! -f $dir/munge.key ]]; then
    (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  fi
  write_configuration
  export SLURM_CONF=$dir/slurm.conf
  munged --force --socket="$dir/munge.socket" --key-file="$dir/munge.key" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
  slurmctld
  slurmd
  for _ in $(seq 300); do
    [[ $(sinfo --noheader --format=%t 2>/dev/null) == idle ]] && { echo "SLURM is idle: $SLURM_CONF"; return; }
    sleep 0.2
  done
  echo "SLURM did not become idle; its logs lie in $dir" >&2
  stop
  return 2
}

stop() {
  local name pid
  for name in slurmd slurmctld munged; do
    pid=$(cat "$dir/$name.pid" 2>/dev/null || true)
    [[ -n $pid ]] || continue
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$dir/$name.pid"
  done
}

case $action in
start) start ;;
stop) stop ;;
*) echo "usage: one_node.sh start|stop DIR" >&2; exit 2 ;;
esac
