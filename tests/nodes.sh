# Nodes of a cluster on one machine, for the scripts that source this file: each node is a network
# namespace with its own hostname, address and process numbers, so it can be cut off or lose its
# power. It needs root and iproute2.
#
# Before, they set DIR (state and logs), SUBNET, and PREFIX and BRIDGE (names of what is made).
export PATH=/usr/sbin:/sbin:$PATH

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

add_bridge() {  # between all nodes and this machine, which is .254 of the subnet
  ! ip link show "$BRIDGE" >/dev/null 2>&1 || return 0
  ip link add "$BRIDGE" type bridge
  ip addr add "$SUBNET.254/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
}
add_network() {  # add_network NODE: its namespace and its link
  ! ip netns list | grep -qw "$PREFIX-$1" || return 0
  ip netns add "$PREFIX-$1"
  ip link add "$PREFIX-$1" type veth peer name eth0 netns "$PREFIX-$1"
  ip link set "$PREFIX-$1" master "$BRIDGE" up
  ip -n "$PREFIX-$1" addr add "$SUBNET.$(number "$1")/24" dev eth0
  ip -n "$PREFIX-$1" link set lo up
  ip -n "$PREFIX-$1" link set eth0 up
}
remove_network() {
  if ip netns list | grep -qw "$PREFIX-$1"; then ip netns del "$PREFIX-$1"; fi
  ip link del "$PREFIX-$1" 2>/dev/null || true
}
remove_bridge() { if ip link show "$BRIDGE" >/dev/null 2>&1; then ip link del "$BRIDGE"; fi; }

power_on() {  # the machine: a process that only waits, number 1 of its namespace
  alive "$1" >/dev/null || {
    launch "$1" ip netns exec "$PREFIX-$1" unshare --uts --pid --fork --kill-child --mount-proc \
      bash -c "hostname $1; trap : CHLD TERM; while :; do sleep 1000 & wait; done"
    sleep 0.5
  }
  heal "$1"
}
power_off() { cut_off "$1"; end "$1" KILL; }  # everything there, at once, without a word
cut_off() { number "$1" >/dev/null; ip link set "$PREFIX-$1" down; }
heal() { number "$1" >/dev/null; ip link set "$PREFIX-$1" up; }
init_of() { local pid; pid=$(alive "$1") && pgrep -P "$pid" | head -1; }
on() {  # on NODE COMMAND...
  local node=$1 pid; shift
  pid=$(init_of "$node") || { echo "$node is down" >&2; return 1; }
  nsenter -t "$pid" --net --uts --mount --pid "$@"
}
