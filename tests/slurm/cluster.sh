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
export SLURM_CONF=$DIR/slurm.conf

. "$(dirname "$0")/../nodes.sh"

names() { sed -n 's/^NodeName=\(node[0-9]*\) .*/\1/p' "$SLURM_CONF"; }

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
  add_bridge
  for node in $(names); do
    mkdir -p "/etc/netns/$PREFIX-$node"
    {
      echo "127.0.0.1 localhost"; echo "$CONTROL $(hostname -s)"
      if [[ $HOSTS == yes ]]; then for other in $(names); do echo "$SUBNET.${other#node} $other"; done; fi
    } >"/etc/netns/$PREFIX-$node/hosts"  # ip netns exec mounts it over /etc/hosts
    add_network "$node"
  done
}

boot() {  # the machine, then its slurmd
  power_on "$1"
  mkdir -p "$DIR/spool-$1"
  on "$1" bash -c "pgrep -x slurmd" >/dev/null || on "$1" slurmd -N "$1" -f "$SLURM_CONF"
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
  cut) cut_off "$2" ;;
  heal) heal "$2" ;;
  crash) power_off "$2" ;;
  halt) on "$2" pkill -x slurmd ;;  # only in the namespace of the node
  boot) boot "$2" ;;
  stop)
    [[ -f $SLURM_CONF ]] || exit 0
    for node in $(names); do end "$node" KILL; done
    end slurmctld; end munged
    for node in $(names); do
      remove_network "$node"
      rm -rf "/etc/netns/$PREFIX-$node"
    done
    remove_bridge
    rm -rf "$DIR"/run "$DIR"/state "$DIR"/spool-* "$DIR"/gpu* ;;
  *) sed -n '2,21s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
