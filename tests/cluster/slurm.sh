#!/bin/bash
# A real Slurm on this one machine, for tests: munged, slurmctld, and one slurmd for each of several virtual nodes.
#   slurm.sh up [NODES=4] [CPUS=8]    start it (what already runs is left alone); the last line printed is the path of slurm.conf
#   slurm.sh down                     cancel its jobs and stop what 'up' has started
# Root only. Needs: apt-get install --no-install-recommends slurm-wlm munge libpmix2 libpmi2-0
# Nothing outside its folder, ${HPCPAR_SLURM:-/tmp/hpcpar-slurm}, is touched, but for munge's key and socket, which a machine has once,
# a link that Slurm's PMIx plugin wants, and MPICH's shared memory that no process has any more. /etc/slurm stays as it is: clients are told
# by SLURM_CONF.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
lab=${HPCPAR_SLURM:-/tmp/hpcpar-slurm} port=26817
gpus=4 # that every node is said to have: what is asked for can be tested, not what they do
export SLURM_CONF=$lab/slurm.conf

say() { printf 'slurm.sh: %s\n' "$*" >&2; }
alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

configure() { # configure NODES CPUS
  local host memory
  host=$(hostname -s) memory=$(awk '/MemTotal/ {print int($2 / 2048)}' /proc/meminfo)
  # no systemd and no cgroups; CPUS need not exist (config_overrides); finished jobs are remembered, as there is no accounting
  cat >"$SLURM_CONF" <<CONF
ClusterName=hpcpar
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool/%n
TmpFS=$lab/tmp/%n
SlurmctldPidFile=$lab/run/slurmctld.pid
SlurmdPidFile=$lab/run/slurmd-%n.pid
SlurmctldLogFile=$lab/log/slurmctld.log
SlurmdLogFile=$lab/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
MinJobAge=3600
KillWait=2
SchedulerParameters=sched_min_interval=0,bf_interval=2
PropagateResourceLimits=NONE
GresTypes=gpu
NodeName=n[1-$1] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + $1))] CPUs=$2 RealMemory=$memory Gres=gpu:$gpus State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
PartitionName=test Nodes=ALL Default=YES MaxTime=01:00:00 State=UP OverSubscribe=YES:8
PartitionName=low Nodes=n[1-2] PriorityTier=1 GraceTime=10 PreemptMode=REQUEUE OverSubscribe=NO
PartitionName=urgent Nodes=n[1-2] PriorityTier=9 PreemptMode=OFF OverSubscribe=NO
CONF
  local i
  for i in $(seq 0 $((gpus - 1))); do
    [ -e "$lab/gpu$i" ] || mknod "$lab/gpu$i" c 1 3 # Slurm wants a device for each, and takes any
  done
  printf 'NodeName=n[1-%s] Name=gpu File=%s/gpu[0-%s]\n' "$1" "$lab" $((gpus - 1)) >"$lab/gres.conf"
}

start_munge() {
  munge -n </dev/null >/dev/null 2>&1 && return
  install -d -o munge -g munge -m 755 /run/munge
  install -d -o munge -g munge -m 700 /var/log/munge /var/lib/munge /etc/munge
  if [ ! -s /etc/munge/munge.key ]; then
    dd if=/dev/urandom of=/etc/munge/munge.key bs=128 count=1 status=none
    chown munge: /etc/munge/munge.key
    chmod 600 /etc/munge/munge.key
  fi
  runuser -u munge -- "$(command -v munged)"
  for _ in $(seq 600); do
    munge -n </dev/null >/dev/null 2>&1 && break
    sleep 0.1
  done
  cp /run/munge/munged.pid "$lab/run/munged.pid" # ours to stop
}

# Slurm loads pmix2/lib/libpmix.so, which Debian has in a development package only; the library itself is libpmix.so.2
link_pmix() {
  local place
  place=/usr/lib/$(uname -m)-linux-gnu/pmix2/lib
  if [ -e "$place/libpmix.so.2" ] && [ ! -e "$place/libpmix.so" ]; then
    ln -s libpmix.so.2 "$place/libpmix.so"
    printf '%s\n' "$place/libpmix.so" >"$lab/run/pmix-link"
  fi
}

up_nodes() { sinfo --noheader --Node --format='%N %t' 2>/dev/null | sort -u | grep -Ec ' (idle|mix|alloc|comp)$' || true; }

forget_shared_memory() { # that no process has
  local left
  for left in /dev/shm/mpich_shm_*; do
    grep -qs "$left" /proc/[0-9]*/maps || rm -f "$left"
  done
}

up() {
  local nodes=${1:-4} cpus=${2:-8} name
  [ "$(id -u)" = 0 ] || { say "only root can start it"; exit 1; }
  for name in slurmctld slurmd srun munged; do
    command -v $name >/dev/null || { say "no $name: apt-get install --no-install-recommends slurm-wlm munge libpmix2 libpmi2-0"; exit 1; }
  done
  # job numbers begin again, and PMIx names its sockets by them: nothing of an earlier life may be left
  # (MPICH its shared memory, too: a job that was killed leaves it, and MPI_Init of the next with its number would hang)
  alive "$lab/run/slurmctld.pid" || { rm -rf "$lab" && forget_shared_memory; }
  mkdir -p "$lab"/{state,log,run,spool,tmp}
  [ -s "$SLURM_CONF" ] || configure "$nodes" "$cpus"
  start_munge
  link_pmix
  alive "$lab/run/slurmctld.pid" || slurmctld -f "$SLURM_CONF"
  for name in $(seq -f 'n%g' "$nodes"); do
    alive "$lab/run/slurmd-$name.pid" && continue
    mkdir -p "$lab/spool/$name" "$lab/tmp/$name"
    # several slurmd on one host: PMIx must be told which node it serves, and how to know its clients
    PMIX_MCA_psec=native PMIX_HOSTNAME=$name slurmd -f "$SLURM_CONF" -N "$name"
  done
  for _ in $(seq 600); do
    [ "$(up_nodes)" = "$nodes" ] && { printf '%s\n' "$SLURM_CONF"; return; }
    sleep 0.1
  done
  say "not all nodes came up; see $lab/log"
  exit 1
}

gone() { # gone PID SECONDS: waits for its end
  for _ in $(seq "$(($2 * 10))"); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}

down() {
  local pids='' pid file ids
  if alive "$lab/run/slurmctld.pid"; then
    ids=$(timeout 5 squeue --noheader --format=%A 2>/dev/null || true)
    # shellcheck disable=SC2086
    [ -z "$ids" ] || timeout 5 scancel $ids || true
    for _ in $(seq 50); do
      [ -n "$(timeout 5 squeue --noheader --format=%A 2>/dev/null || true)" ] || break
      sleep 0.1
    done
    pid=$(cat "$lab/run/slurmctld.pid")
    timeout 5 scontrol shutdown 2>/dev/null || true # ends the nodes as well, within a second; a bare SIGTERM takes slurmctld ten
    gone "$pid" 5 || kill "$pid"
  fi
  for file in "$lab"/run/*.pid; do
    if alive "$file"; then pids+=" $(cat "$file")"; fi
  done
  for pid in $pids; do kill "$pid" 2>/dev/null || true; done
  for pid in $pids; do gone "$pid" 10 || kill -9 "$pid" 2>/dev/null || true; done
  if [ -s "$lab/run/pmix-link" ]; then rm -f "$(cat "$lab/run/pmix-link")"; fi
  rm -rf "$lab"
}

case ${1:-} in
up | down) "$@" ;;
*) say "usage: slurm.sh up [NODES] [CPUS] | down"; exit 2 ;;
esac
