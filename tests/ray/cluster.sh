#!/bin/bash
# A real Ray cluster on one machine: each node is a network namespace (see tests/nodes.sh), with
# Ray's files in memory, so a node can lose its power. node1 is the head.
#
#   cluster.sh start          starts it
#   cluster.sh on node2 CMD   runs a command on a node
#   cluster.sh crash node2    loses its power (link first, then SIGKILL to everything there)
#   cluster.sh boot node2     starts it again
#   cluster.sh restart        the same for all nodes, whatever runs there
#   cluster.sh stop           ends what it started, and nothing else
#
# Variables: RAY_CLUSTER_DIR (state and logs), PYTHON (with Ray), NODES (3), CPUS of each (1).
set -euo pipefail
DIR=${RAY_CLUSTER_DIR:?} PYTHON=${PYTHON:?} NODES=${NODES:-3} CPUS=${CPUS:-1}
SUBNET=10.213.87 PREFIX=rayc BRIDGE=raycbr0
HEAD=$SUBNET.1:6399
# The machine may be busy when a node starts; a node without power is lost after 10 seconds.
export RAY_raylet_start_wait_time_s=120 RAY_health_check_initial_delay_ms=2000 \
  RAY_health_check_period_ms=2000 RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=5

. "$(dirname "$0")/../nodes.sh"

names() { seq -f 'node%g' "$NODES"; }

boot() {  # the machine, then its part of the cluster
  local where=(--address="$HEAD")
  [[ $1 != node1 ]] || where=(--head --port="${HEAD#*:}" --include-dashboard=false)
  power_on "$1"
  mkdir -p /tmp/ray
  on "$1" mount -t tmpfs none /tmp/ray
  on "$1" "$PYTHON" -m ray.scripts.scripts start "${where[@]}" --num-cpus="$CPUS" --disable-usage-stats \
    --node-ip-address="$SUBNET.$(number "$1")" --object-store-memory=100000000 </dev/null
}

boot_all() {  # the head, then the others at the same time
  local node others=()
  boot node1
  for node in $(names | tail -n +2); do boot "$node" & others+=($!); done
  for node in "${others[@]}"; do wait "$node"; done
}

case ${1:-} in
  start)
    [[ $(id -u) == 0 ]] || { echo "it needs root" >&2; exit 1; }
    mkdir -p "$DIR"/{run,log}
    # Without a token, whoever reaches the cluster can run programs on it.
    (umask 077; od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >"$DIR/token")
    add_bridge
    for node in $(names); do add_network "$node"; done
    boot_all ;;
  on) shift; on "$@" ;;
  crash) power_off "$2" ;;
  boot) boot "$2" ;;
  restart) for node in $(names); do power_off "$node"; done; boot_all ;;
  stop)
    for node in $(names); do end "$node" KILL; remove_network "$node"; done
    remove_bridge ;;
  *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
