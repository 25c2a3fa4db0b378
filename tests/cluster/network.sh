#!/bin/bash
# A multi-host network on this one machine, for tests: network namespaces as hosts, joined by a bridge, every link shaped both ways.
#   network.sh up HOSTS MBIT       hosts 10.78.0.1 ... 10.78.0.HOSTS, links of MBIT Mbit/s (what is there is changed in place)
#   network.sh run [-n P] PROGRAM  one rank a host, over TCP alone (MPICH wheel)
#   network.sh bytes HOST          bytes that host HOST (1, 2, ...) has sent so far, as its interface counts them
#   network.sh down                end what still runs there, and remove everything
# Root only. Needs: iproute2 with network namespaces, bridges and tc's tbf; sysctl.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=hpn bridge=hpnbr0 net=10.78.0 state=/run/hpcpar-network

say() { printf 'network.sh: %s\n' "$*" >&2; }
hosts_up() { ip netns list | awk -v p="$prefix" '$1 ~ "^" p "[0-9]+$" {print substr($1, length(p) + 1)}'; }

up() {
  local hosts=${1:?HOSTS} rate=${2:?MBIT} mtu=1500 burst i j ns
  [ "$(id -u)" = 0 ] || { say "only root can make network namespaces"; exit 1; }
  # What passes free after idle time, and what makes up for late timers: a quarter of a millisecond of the rate, at least two packets.
  # Smaller, and 1 Gbit/s is not reached; larger, and small messages look free.
  if [ "$rate" -ge 1000 ]; then mtu=9000; fi
  burst=$((rate * 125 / 4))
  if [ $burst -lt $((2 * mtu + 28)) ]; then burst=$((2 * mtu + 28)); fi
  mkdir -p $state
  if ! ip link show $bridge >/dev/null 2>&1; then
    ip link add $bridge type bridge
    ip addr add $net.254/24 dev $bridge # the launcher's
  fi
  ip link set $bridge mtu $mtu up
  for i in $(seq "$hosts"); do
    ns=$prefix$i
    ip netns list | grep -qE "^$ns( |$)" || ip netns add "$ns"
    if ! ip link show "${prefix}v$i" >/dev/null 2>&1; then
      ip link add "${prefix}v$i" type veth peer name eth0 netns "$ns"
      ip link set "${prefix}v$i" master $bridge
      ip -n "$ns" addr add "$net.$i/24" dev eth0
    fi
    ip link set "${prefix}v$i" mtu $mtu up
    ip -n "$ns" link set eth0 mtu $mtu up
    ip -n "$ns" link set lo up
    # no slow start after idle time
    ip netns exec "$ns" sysctl -qw net.ipv4.tcp_slow_start_after_idle=0
    ip netns exec "$ns" tc qdisc replace dev eth0 root tbf rate "${rate}mbit" burst $burst limit 8388608
    tc qdisc replace dev "${prefix}v$i" root tbf rate "${rate}mbit" burst $burst limit 8388608
    # what 'ip netns exec' puts over /etc/hosts
    mkdir -p "/etc/netns/$ns"
    {
      printf '127.0.0.1 localhost\n%s.254 %s\n' $net "$(hostname -s)"
      for j in $(seq "$hosts"); do printf '%s.%s %s%s\n' $net "$j" $prefix "$j"; done
    } >"/etc/netns/$ns/hosts"
  done
  for i in $(hosts_up); do
    if [ "$i" -gt "$hosts" ]; then remove "$i"; fi
  done
  printf '%s\n' "$hosts" >$state/hosts
}

remove() { # remove HOST
  local pid
  for pid in $(ip netns pids "$prefix$1"); do kill "$pid" 2>/dev/null || true; done
  ip link del "${prefix}v$1" 2>/dev/null || true
  ip netns del "$prefix$1"
  rm -rf "/etc/netns/$prefix$1"
}

down() {
  local i
  for i in $(hosts_up); do remove "$i"; done
  ip link del $bridge 2>/dev/null || true
  rm -rf $state
}

bytes() { ip netns exec "$prefix${1:?HOST}" cat /sys/class/net/eth0/statistics/tx_bytes; }

run() {
  local hosts ranks list i
  [ -r $state/hosts ] || { say "no network: network.sh up HOSTS MBIT"; exit 1; }
  hosts=$(cat $state/hosts) ranks=$hosts list=''
  if [ "${1:-}" = -n ]; then
    ranks=$2
    shift 2
  fi
  [ "$ranks" -le "$hosts" ] || { say "$ranks ranks on $hosts hosts"; exit 1; }
  for i in $(seq "$ranks"); do list+=${list:+,}$net.$i; done
  # MPICH: no shared memory, sockets over the shaped link, and this file's neighbor for ssh
  export MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=eth0
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
  exec mpiexec -launcher ssh -launcher-exec "$here/network-ssh.sh" -iface $bridge -hosts "$list" -ppn 1 -n "$ranks" "$@"
}

case ${1:-} in
up | run | bytes | down) "$@" ;;
*) say "usage: network.sh up HOSTS MBIT | run [-n P] PROGRAM | bytes HOST | down"; exit 2 ;;
esac
