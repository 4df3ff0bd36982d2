#!/bin/bash
# A real SLURM cluster on one machine: each node is a network namespace with its own hostname,
# address, /etc/hosts and process numbers, so a node can be cut off or lose its power.
#
#   apt-get install -y slurm-wlm munge iproute2       (once; root; SLURM 22.05 was used)
#   cluster.sh start          starts it, or what is missing of it; twice is as once
#   eval "$(cluster.sh env)"  lets sbatch, srun, squeue, scontrol talk to it
#   cluster.sh status         nodes and jobs
#   cluster.sh on node2 CMD   runs a command on a node
#   cluster.sh cut node2      takes the network link of a node down;  heal node2: up again
#   cluster.sh crash node2    loses its power (link first, then SIGKILL to everything there)
#   cluster.sh boot node2     starts it again
#   cluster.sh halt node2     stops only its slurmd (SIGTERM); boot node2: again
#   cluster.sh stop           ends what it started, and nothing else
#
# Variables: SLURM_CLUSTER_DIR (state and logs), NODES (3), CPUS and GPUS that each node claims
# (64, 8: nothing checks them; the GPUs are only numbers), SLURMD_TIMEOUT (60 seconds),
# SUBNET (10.213.77), EXTRA (more lines for slurm.conf), HOSTS=no (names of nodes resolve nowhere).
set -euo pipefail
DIR=${SLURM_CLUSTER_DIR:-/tmp/slurm-cluster} NODES=${NODES:-3} CPUS=${CPUS:-64} GPUS=${GPUS:-8}
SUBNET=${SUBNET:-10.213.77} SLURMD_TIMEOUT=${SLURMD_TIMEOUT:-60} EXTRA=${EXTRA:-} HOSTS=${HOSTS:-yes}
PREFIX=slc BRIDGE=slcbr0 CONTROL=$SUBNET.254
export SLURM_CONF=$DIR/slurm.conf PATH=/usr/sbin:/sbin:$PATH

names() { sed -n 's/^NodeName=\(node[0-9]*\) .*/\1/p' "$SLURM_CONF"; }
number() { [[ $1 =~ ^node([0-9]+)$ ]] && echo "${BASH_REMATCH[1]}" || { echo "no node: $1" >&2; exit 2; }; }

# The process of a pid file, if it is still the one that was started (same start time).
alive() {
  local pid began
  [[ -f $DIR/run/$1 ]] && read -r pid began <"$DIR/run/$1" && [[ -n $pid ]] &&
    [[ $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20) == "$began" ]] && echo "$pid"
}
launch() {  # launch NAME COMMAND...: a process in the background that outlives this shell
  local name=$1; shift
  setsid "$@" >>"$DIR/log/$name.out" 2>&1 </dev/null &
  echo "$! $(sed 's/.*) //' "/proc/$!/stat" | cut -d' ' -f20)" >"$DIR/run/$name"
}
end() {  # end NAME [SIGNAL]: one process that `launch` started
  local pid signal=${2:-TERM}
  if pid=$(alive "$1"); then
    kill -s "$signal" "$pid" 2>/dev/null || true
    for _ in $(seq 50); do alive "$1" >/dev/null || break; sleep 0.1; done
    if pid=$(alive "$1"); then kill -s KILL "$pid"; fi
  fi
  rm -f "$DIR/run/$1"
}

write_conf() {
  {
    cat <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)($CONTROL)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.socket
CryptoType=crypto/munge
SlurmctldPort=26817
SlurmdPort=26818
SlurmctldPidFile=$DIR/run/slurmctld.pid
SlurmdPidFile=$DIR/run/slurmd-%n.pid
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool-%n
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=5,bf_interval=5
ReturnToService=2
SlurmdTimeout=$SLURMD_TIMEOUT
KillWait=30
JobRequeue=1
GresTypes=gpu
CONF
    for number in $(seq "$NODES"); do
      echo "NodeName=node$number NodeAddr=$SUBNET.$number CPUs=$CPUS RealMemory=8000 Gres=gpu:$GPUS"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    [[ -z $EXTRA ]] || printf '%b\n' "$EXTRA"
  } >"$SLURM_CONF"
  # GPUs that are empty files: SLURM counts them and sets CUDA_VISIBLE_DEVICES.
  for number in $(seq 0 $((GPUS - 1))); do : >"$DIR/gpu$number"; done
  echo "Name=gpu File=$DIR/gpu[0-$((GPUS - 1))]" >"$DIR/gres.conf"
  # Nothing uses cgroups, but slurmd ends unless it knows their version (ip netns exec hides them).
  echo "CgroupPlugin=cgroup/v1" >"$DIR/cgroup.conf"
}

network() {
  if ! ip link show "$BRIDGE" >/dev/null 2>&1; then
    ip link add "$BRIDGE" type bridge
    ip addr add "$CONTROL/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
  fi
  for node in $(names); do
    local number; number=$(number "$node")
    mkdir -p "/etc/netns/$PREFIX-$node"
    {
      echo "127.0.0.1 localhost"; echo "$CONTROL $(hostname -s)"
      if [[ $HOSTS == yes ]]; then for other in $(names); do echo "$SUBNET.${other#node} $other"; done; fi
    } >"/etc/netns/$PREFIX-$node/hosts"  # ip netns exec mounts it over /etc/hosts
    ip netns list | grep -qw "$PREFIX-$node" && continue
    ip netns add "$PREFIX-$node"
    ip link add "$PREFIX-$node" type veth peer name eth0 netns "$PREFIX-$node"
    ip link set "$PREFIX-$node" master "$BRIDGE" up
    ip -n "$PREFIX-$node" addr add "$SUBNET.$number/24" dev eth0
    ip -n "$PREFIX-$node" link set lo up
    ip -n "$PREFIX-$node" link set eth0 up
  done
}

boot() {  # the machine (a process that only waits, number 1 of its namespace), then its slurmd
  alive "$1" >/dev/null || {
    launch "$1" ip netns exec "$PREFIX-$1" unshare --uts --pid --fork --kill-child --mount-proc \
      bash -c "hostname $1; trap : CHLD TERM; while :; do sleep 1000 & wait; done"
    sleep 0.5
  }
  ip link set "$PREFIX-$1" up
  mkdir -p "$DIR/spool-$1"
  on "$1" bash -c "pgrep -x slurmd" >/dev/null || on "$1" slurmd -N "$1" -f "$SLURM_CONF"
}
init_of() { local pid; pid=$(alive "$1") && pgrep -P "$pid" | head -1; }
on() {
  local node=$1 pid; shift
  pid=$(init_of "$node") || { echo "$node is down" >&2; return 1; }
  nsenter -t "$pid" --net --uts --mount --pid "$@"
}

case ${1:-} in
  start)
    [[ $(id -u) == 0 ]] || { echo "it needs root" >&2; exit 1; }
    mkdir -p "$DIR"/{run,log,state}; chmod 755 "$DIR" "$DIR/run"
    [[ -n $(alive slurmctld) ]] || write_conf
    [[ -f $DIR/munge.key ]] || { (umask 077; head -c 1024 /dev/urandom >"$DIR/munge.key"); }
    alive munged >/dev/null || {
      rm -f "$DIR/run/munge.socket"*
      launch munged munged --foreground --force --key-file="$DIR/munge.key" --socket="$DIR/run/munge.socket" \
        --pid-file="$DIR/run/munged.pid" --log-file="$DIR/log/munged.log" --seed-file="$DIR/run/munged.seed"
    }
    network
    for _ in $(seq 50); do [[ -S $DIR/run/munge.socket ]] && break; sleep 0.1; done
    alive slurmctld >/dev/null || launch slurmctld slurmctld -D -f "$SLURM_CONF"
    for _ in $(seq 100); do scontrol ping 2>/dev/null | grep -q "UP" && break; sleep 0.1; done
    for node in $(names); do boot "$node"; done
    for _ in $(seq 100); do [[ $(sinfo -h -t idle,mixed,allocated -N | wc -l) == "$(names | wc -l)" ]] && break; sleep 0.2; done
    sinfo -N ;;
  env) echo "export SLURM_CONF=$SLURM_CONF" ;;
  status) sinfo -N -o '%N %T %E'; squeue -o '%i %j %T %r %S %M %N' ;;
  on) shift; on "$@" ;;
  cut) number "$2" >/dev/null; ip link set "$PREFIX-$2" down ;;
  heal) number "$2" >/dev/null; ip link set "$PREFIX-$2" up ;;
  crash) number "$2" >/dev/null; ip link set "$PREFIX-$2" down; end "$2" KILL ;;
  halt) on "$2" pkill -x slurmd ;;  # only in the namespace of the node
  boot) boot "$2" ;;
  stop)
    [[ -f $SLURM_CONF ]] || exit 0
    for node in $(names); do end "$node" KILL; done
    end slurmctld; end munged
    for node in $(names); do
      if ip netns list | grep -qw "$PREFIX-$node"; then ip netns del "$PREFIX-$node"; fi
      ip link del "$PREFIX-$node" 2>/dev/null || true
      rm -rf "/etc/netns/$PREFIX-$node"
    done
    if ip link show "$BRIDGE" >/dev/null 2>&1; then ip link del "$BRIDGE"; fi
    rm -rf "$DIR"/run "$DIR"/state "$DIR"/spool-* "$DIR"/gpu* ;;
  *) sed -n '2,21s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
