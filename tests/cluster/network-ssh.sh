#!/bin/bash
# In place of ssh for the hosts of network.sh: network-ssh.sh [OPTIONS] HOST COMMAND... runs the command on HOST, with a network, a
# hostname, System V memory and /dev/shm of its own: nothing but TCP joins two hosts (and the file system, as on a cluster).
while [ "${1#-}" != "${1:-}" ]; do
  case $1 in -[pliFoJ]) shift 2 ;; *) shift ;; esac
done
host=${1#*@} net=10.78.0 prefix=hpn
shift
case $host in
"$net".*) name=$prefix${host##*.} ;;
"$prefix"*) name=$host ;;
*) echo "network-ssh.sh: unknown host $host" >&2; exit 255 ;;
esac
# shellcheck disable=SC2016
exec ip netns exec "$name" unshare --uts --ipc --mount --propagation private /bin/bash -c '
  hostname "$1"
  shift
  mount -t tmpfs -o size=512m tmpfs /dev/shm
  export TMPDIR=/dev/shm
  exec /bin/bash -c "$*"' _ "$name" "$@"
