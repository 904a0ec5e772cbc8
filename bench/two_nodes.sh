#!/usr/bin/env bash
# two_nodes.sh RATE RANKS TUTTI PROGRAM...   PROGRAM as RANKS ranks on each of two "nodes" of this machine, two network
# namespaces whose link carries RATE (1gbit, 100mbit); TUTTI is the launcher. Needs root, ip and tc (iproute2).
# Exit code 77 with one line that says why when this machine cannot do that.
#
# The namespaces have no names: each lives as long as a process in it, so runs never meet and nothing can be left behind.
# For the same reason every port is free.
set -eu
declare -r addresses=(10.77.0.1 10.77.0.2) port=29500 grace=5 cannot=77

main() {
  case $1 in
    --here) shift; both_nodes "$@" ;;
    --node) shift; one_node "$@" ;;
    *) check; exec unshare --net -- "$0" --here "$@" ;;
  esac
}

check() {
  local tool
  ((EUID == 0)) || skip 'that needs root'
  for tool in ip tc unshare setpriv; do
    command -v "$tool" >/dev/null || skip "there is no program $tool (packages iproute2 and util-linux)"
  done
  unshare --net -- sh -c 'ip link add wire0 type veth peer name wire1 && tc qdisc add dev wire0 root tbf rate 1gbit \
    burst 256kb latency 100ms' >/dev/null 2>&1 || skip 'this kernel or container refuses network namespaces, veth or tbf'
}

skip() {
  echo "skipped: no two nodes on this machine: $1"
  exit "$cannot"
}

# Runs in the first node's namespace. The second node starts in one of its own and is handed its end of the wire.
both_nodes() {
  local nodes=() code=0 tenths
  trap end_nodes EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  setpriv --pdeathsig TERM unshare --net -- "$0" --node 1 "$@" & nodes+=($!)
  until [[ $(readlink "/proc/${nodes[0]}/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.02; done
  ip link add wire0 type veth peer name wire1 netns "${nodes[0]}"
  setpriv --pdeathsig TERM "$0" --node 0 "$@" & nodes+=($!)

  wait -n "${nodes[@]}" || code=$?
  if ((code == 0)); then
    wait "${nodes[0]}" || code=$?
    wait "${nodes[1]}" || code=$?
  else
    # The other node gets the time to notice and to say so itself.
    for ((tenths = 0; tenths < 10 * grace; ++tenths)); do
      [[ -n $(jobs -pr) ]] || break
      sleep 0.1
    done
  fi
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
  local node=$1 rate=$2 ranks=$3 tutti=$4
  shift 4
  until ip link show "wire$node" >/dev/null 2>&1; do sleep 0.02; done
  ip link set lo up
  ip addr add "${addresses[node]}/24" dev "wire$node"
  ip link set "wire$node" up
  tc qdisc add dev "wire$node" root tbf rate "$rate" burst 256kb latency 100ms
  export GLOO_SOCKET_IFNAME=wire$node
  exec "$tutti" launch -n "$ranks" --nnodes 2 --node-rank "$node" --master-addr "${addresses[0]}" --master-port "$port" \
    -- "$@"
}

main "$@"
