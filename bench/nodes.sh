#!/usr/bin/env bash
# nodes.sh NODES RATE RANKS LAUNCHER PROGRAM...   runs PROGRAM as RANKS ranks on each of NODES "nodes" of this machine.
# Nodes are network namespaces at one switch; each sends at most RATE (1gbit, 100mbit; none: no limit). LAUNCHER is tutti,
# or Open MPI's mpiexec, which runs in the first node. Needs root, ip and tc (iproute2). On a machine that cannot make
# nodes, exits with 77 and one line with the reason. GRACE is the number of seconds that ranks go on after another has
# failed.
#
# The namespaces have no names and exist for this run only. So concurrent runs are isolated, nothing remains after a run,
# and every port is free.
set -eu
declare -r network=10.77.0 port=29500 grace=${GRACE:-5} cannot=77

main() {
  case $1 in
    --here) shift; all_nodes "$@" ;;
    --node) shift; one_node "$@" ;;
    --enter) shift; enter "$@" ;;
    *) check; exec unshare --net -- "$0" --here "$@" ;;
  esac
}

check() {
  local tool
  ((EUID == 0)) || skip 'that needs root'
  for tool in ip tc unshare nsenter setpriv; do
    command -v "$tool" >/dev/null || skip "program $tool not found (packages iproute2 and util-linux)"
  done
  unshare --net -- sh -c 'ip link add wires type bridge && ip link add port1 master wires type veth peer name wire1 &&
    tc qdisc add dev wire1 root tbf rate 1gbit burst 256kb latency 100ms' >/dev/null 2>&1 ||
    skip 'this kernel or container refuses network namespaces, bridges, veth or tbf'
}

skip() {
  echo "skipped: this machine cannot make nodes: $1"
  exit "$cannot"
}

# Runs in the first node's namespace, which holds the switch. The other nodes start in their own namespaces and receive
# their ends of the links. This script holds the namespaces open, because a node exists longer than its programs.
all_nodes() {
  local count=$1 node pid held nodes=() code=0 tenths
  shift
  trap end_nodes EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  ip link add wires type bridge
  for ((node = 1; node < count; ++node)); do
    setpriv --pdeathsig TERM unshare --net -- "$0" --node "$node" "$count" "$@" & pid=$!
    nodes+=("$pid")
    until [[ $(readlink "/proc/$pid/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.02; done
    exec {held}<"/proc/$pid/ns/net"
    export NODE_NAMESPACES="${NODE_NAMESPACES:-} /proc/$$/fd/$held"
    ip link add "port$node" master wires type veth peer name "wire$node" netns "$pid"
    ip link set "port$node" up
  done
  setpriv --pdeathsig TERM "$0" --node 0 "$count" "$@" & nodes+=($!)

  wait -n "${nodes[@]}" || code=$?
  if ((code == 0)); then
    for pid in "${nodes[@]}"; do wait "$pid" || code=$?; done
  fi
  # The other nodes get time to detect the failure and report it.
  for ((tenths = 0; code != 0 && tenths < 10 * grace; ++tenths)); do
    [[ -n $(jobs -pr) ]] || break
    sleep 0.1
  done
  exit "$code"
}

end_nodes() {
  trap '' HUP INT TERM
  local nodes
  mapfile -t nodes < <(jobs -pr)
  ((${#nodes[@]} == 0)) || kill "${nodes[@]}" 2>/dev/null || true
  wait
}

one_node() {
  local node=$1 count=$2 rate=$3 ranks=$4 launcher=$5 wire=wires
  shift 5
  ((node == 0)) || wire=wire$node
  until ip link show "$wire" >/dev/null 2>&1; do sleep 0.02; done
  ip link set lo up
  ip addr add "$network.$((node + 1))/24" dev "$wire"
  ip link set "$wire" up
  [[ $rate == none ]] || tc qdisc add dev "$wire" root tbf rate "$rate" burst 256kb latency 100ms
  [[ ${launcher##*/} == tutti ]] || open_mpi "$node" "$count" "$ranks" "$launcher" "$@"
  export GLOO_SOCKET_IFNAME=$wire
  exec "$launcher" launch --grace "$grace" -n "$ranks" --nnodes "$count" --node-rank "$node" --master-addr "$network.1" \
    --master-port "$port" -- "$@"
}

# mpiexec starts its daemon on another node with `nodes.sh --enter ADDRESS COMMAND...`, instead of ssh.
open_mpi() {
  local node=$1 count=$2 ranks=$3 mpiexec=$4 hosts='' host
  shift 4
  ((node == 0)) || exit 0  # the first node holds the namespace
  for ((host = 1; host <= count; ++host)); do hosts+=",$network.$host:$ranks"; done
  export OMPI_MCA_plm_rsh_agent="$0 --enter" OMPI_MCA_oob_tcp_if_include=$network.0/24
  export OMPI_MCA_mpi_yield_when_idle=1  # the nodes share the cores of this machine
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=$network.0/24
  exec "$mpiexec" -n "$((count * ranks))" --host "${hosts#,}" "$@"
}

enter() {
  local address=$1 namespaces namespace
  shift
  read -ra namespaces <<<"$NODE_NAMESPACES"
  namespace=${namespaces[${address##*.} - 2]}
  until nsenter --net="$namespace" ip route | grep -q "^$network"; do sleep 0.02; done
  exec nsenter --net="$namespace" sh -c "$*"
}

main "$@"
