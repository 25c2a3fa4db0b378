#!/bin/bash
# A real Grid Engine on this one machine, for tests: sge_qmaster and sge_execd, one host of 8 slots, parallel environment 'mpi'.
#   gridengine.sh up      start it (what already runs is left alone)
#   gridengine.sh down    delete its jobs and stop it
# Root only. Needs: apt-get install --no-install-recommends gridengine-master gridengine-exec gridengine-client
# Its state is where Debian puts it: /var/lib/gridengine and /var/spool/gridengine.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
cell=/var/lib/gridengine/default/common spool=/var/spool/gridengine

say() { printf 'gridengine.sh: %s\n' "$*" >&2; }
alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }
try() { # try COMMAND...: up to a minute
  for _ in $(seq 600); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  say "$* fails; see $spool/qmaster/messages"
  exit 1
}

# change OLD NEW SET: reads what 'qconf OLD' shows, replaces the values of 'name value' lines, and gives it to 'qconf NEW'
change() {
  local file
  file=$(mktemp -d)/global
  qconf $1 | sed -e ':a' -e '/\\$/{N;s/\\\n *//;ta' -e '}' |
    awk -v set="$3" 'BEGIN {n = split(set, p, ";"); for (i = 1; i <= n; i++) {k = p[i]; sub(/ .*/, "", k); v[k] = p[i]}}
      /^#/ {next} {print ($1 in v) ? v[$1] : $0}' >"$file"
  qconf $2 "$file" >/dev/null
  rm -r "${file%/*}"
}

up() {
  local name host
  [ "$(id -u)" = 0 ] || { say "only root can start it"; exit 1; }
  for name in sge_qmaster sge_execd qsub qconf; do
    command -v $name >/dev/null || { say "no $name: apt-get install --no-install-recommends gridengine-master gridengine-exec gridengine-client"; exit 1; }
  done
  # one machine has one name, however many its network gives it
  host=localhost
  printf '%s %s\n' $host "$(hostname)" >$cell/host_aliases
  alive $spool/qmaster/qmaster.pid || sge_qmaster
  try qconf -sh
  qconf -as $host >/dev/null 2>&1 || true
  # root may run jobs; the scheduler looks at once; finished jobs are known at once
  change -sconf -Mconf "min_uid 0;min_gid 0;reporting_params accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00"
  change -ssconf -Msconf "schedule_interval 0:0:1;flush_submit_sec 1;flush_finish_sec 1"
  printf '%s NONE\n' load_scaling complex_values user_lists xuser_lists projects xprojects usage_scaling report_variables >$spool/host
  echo "hostname $host" >>$spool/host
  qconf -se $host >/dev/null 2>&1 || qconf -Ae $spool/host >/dev/null
  printf '%s\n' 'pe_name mpi' 'slots 64' 'user_lists NONE' 'xuser_lists NONE' 'start_proc_args NONE' 'stop_proc_args NONE' 'allocation_rule $fill_up' \
    'control_slaves TRUE' 'job_is_first_task FALSE' 'urgency_slots min' 'accounting_summary FALSE' 'qsort_args NONE' >$spool/mpi
  qconf -sp mpi >/dev/null 2>&1 || qconf -Ap $spool/mpi >/dev/null
  qconf -sq test.q >/dev/null 2>&1 ||
    change -sq -Aq "qname test.q;hostlist $host;slots 8;pe_list mpi;shell /bin/bash;rerun TRUE;load_thresholds NONE"
  alive $spool/execd/$host/execd.pid || sge_execd
  try sh -c "qstat -f | grep -q 'test.q@$host .* lx-[a-z0-9]* *\$'"
}

down() {
  local pid pids='' file
  qdel -f -u '*' >/dev/null 2>&1 || true
  for file in $spool/execd/localhost/execd.pid $spool/qmaster/qmaster.pid; do
    if alive $file; then pids+=" $(cat $file)"; fi
  done
  for pid in $pids; do kill "$pid"; done
  for pid in $pids; do
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  done
}

case ${1:-} in
up | down) "$@" ;;
*) say "usage: gridengine.sh up | down"; exit 2 ;;
esac
