#!/usr/bin/env bash
# The simulator beside FerroCCL itself: hosts are network namespaces, whose links tc(8) makes slow. Slow links are all that takes time then.
#
#   benches/simulated.sh [RATE]    as root; RATE in Mbit/s, 200 if it is left out; a table for benches/records
#
# It takes `ip` and `tc` (iproute2), the kernel's tbf, and target/release/ferroccl (`cargo build --release -p ferroccl-cli`).
# On the CPU and in the simulator a call has one channel of Simple, with slots of one size.
set -euo pipefail
cd "$(dirname "$0")/.."
rate=${1:-200}
ferroccl=${FERROCCL_BIN:-$PWD/target/release/ferroccl}
sizes=(256K 1M 4M)
rounds=3
switch=ferroccl-bench-switch
host=ferroccl-bench-host
work=$(mktemp -d)

clean() {
    local name
    for name in $(ip netns list | cut -d' ' -f1 | grep -E "^($switch|$host[0-9]+)$" || true); do
        ip netns del "$name"
    done
    rm -rf "$work"
}
trap clean EXIT

# A host has 4 ranks or 2, and one card of that rate.
topology() {
    echo '<system version="1">'
    echo '  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">'
    local gpu
    for ((gpu = 0; gpu < $1; gpu++)); do
        echo "    <pci busid=\"0000:1$gpu:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"
        echo "      <gpu dev=\"$gpu\" sm=\"80\" rank=\"$gpu\" gdr=\"0\"/>"
        echo '    </pci>'
    done
    echo "    <nic><net name=\"eth0\" dev=\"0\" speed=\"$rate\" port=\"1\" guid=\"0x1\" maxconn=\"65536\" gdr=\"0\"/></nic>"
    echo '  </cpu>'
    echo '</system>'
}

# So many hosts on a switch. Both ends of a cable are slow.
hosts() {
    ip netns add $switch
    ip -n $switch link add bridge type bridge
    ip -n $switch link set bridge up
    local h
    for ((h = 0; h < $1; h++)); do
        ip netns add $host$h
        ip -n $host$h link set lo up
        ip -n $host$h link add eth0 type veth peer name port$h netns $switch
        ip -n $host$h address add 10.214.$h.1/16 dev eth0
        ip -n $switch link set port$h master bridge up
        ip -n $host$h link set eth0 up
        ip netns exec $host$h tc qdisc add dev eth0 root tbf rate "${rate}mbit" burst 64kb latency 100ms
        ip netns exec $switch tc qdisc add dev port$h root tbf rate "${rate}mbit" burst 64kb latency 100ms
    done
}

# What is set for both, so that both make the same plan.
plan() {
    export NCCL_ALGO=$1 NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=1 NCCL_BUFFSIZE=1048576
}

# Microseconds of a call of each size, a line a size: HOSTS EACH
measured() {
    local h l
    export FERROCCL_WORLD_SIZE=$(($1 * $2)) FERROCCL_LOCAL_SIZE=$2 NCCL_COMM_ID=10.214.0.1:$((4000 + RANDOM % 10000))
    export NCCL_SOCKET_IFNAME=eth0
    for ((h = 0; h < $1; h++)); do
        for ((l = 0; l < $2; l++)); do
            FERROCCL_RANK=$((h * $2 + l)) FERROCCL_LOCAL_RANK=$l NCCL_HOSTID=host$h \
                ip netns exec $host$h "$ferroccl" perf all_reduce -b 256K -e 4M -f 4 -n 3 -w 1 -c 0 >"$work/rank$((h * $2 + l))" 2>&1 &
        done
    done
    wait
    grep -a float "$work/rank0" | awk '{ print $6 }'
}

simulated() {
    topology "$2" >"$work/host.xml"
    "$ferroccl" simulate all_reduce --file "$work/host.xml" --nodes "$1" --bytes "$(IFS=,; echo "${sizes[*]}")" --algo "$3" --proto simple |
        awk '/step by step/ { gsub(/\*/, ""); print ($2 ~ /^[A-Z]/ ? $5 : $4) }'
}

median() {
    sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

echo "| hosts | ranks of each | algorithm | size | measured, ms | simulated, ms | simulated / measured |"
echo "|---:|---:|---|---:|---:|---:|---:|"
for shape in "2 4" "4 4" "4 2"; do
    read -r count each <<<"$shape"
    hosts "$count"
    for algorithm in ring tree chain hierarchical; do
        plan $algorithm
        for ((round = 0; round < rounds; round++)); do
            measured "$count" "$each" >"$work/round$round"
        done
        simulated "$count" "$each" $algorithm >"$work/simulated"
        for at in "${!sizes[@]}"; do
            line=$((at + 1))
            real=$(for ((round = 0; round < rounds; round++)); do sed -n ${line}p "$work/round$round"; done | median)
            model=$(sed -n ${line}p "$work/simulated")
            awk -v h="$count" -v e="$each" -v a=$algorithm -v s="${sizes[$at]}" -v r="$real" -v m="$model" \
                'BEGIN { printf "| %s | %s | %s | %s | %.1f | %.1f | %.2f |\n", h, e, a, s, r / 1000, m / 1000, m / r }'
        done
    done
    ip netns list | cut -d' ' -f1 | grep -E "^($switch|$host[0-9]+)$" | xargs -r -n1 ip netns del
done
