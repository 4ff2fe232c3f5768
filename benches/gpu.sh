#!/usr/bin/env bash
# All that there is to run on a GPU, in one go, from binaries that were built elsewhere.
#
#   benches/gpu.sh pack [DIR]                 builds what is run and puts it into DIR (target/gpu), some 70 MB
#   benches/gpu.sh run [DIR [OUT [PART...]]]  runs it on this machine; the record and all output go to OUT (DIR/out)
#
# A PART is one of: tests fused sanitizers perf bench ncu; without one, all of them in this order. DIR needs nothing of the
# repository, and the machine nothing but NVIDIA's driver; compute-sanitizer and ncu are used where they are found.
# OUT/record.md is made for benches/records/: date, GPU, driver, commit, and what was seen. The exit status is 1 when
# anything failed. MINUTES (20) is the most that one part may take.
set -uo pipefail

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }

pack() {
    local dir=$1 root
    root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
    mkdir -p "$dir" && dir=$(cd "$dir" && pwd) && cd "$root" || exit 1
    cargo build --release --bins || exit 1
    # Cargo says where it has put what has a hash in its name.
    built() { # built KIND NAME
        cargo "$1" --no-run --message-format=json "$2" "$3" |
            sed -nE 's/.*"executable":"([^"]*\/'"$3"'-[0-9a-f]+)".*/\1/p' | tail -1
    }
    local tests
    tests=$(built test --test gpu) || exit 1
    cp "$tests" "$dir/gpu" && cp "$0" "$dir/gpu.sh" || exit 1
    cp "$(cargo metadata --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')/release/ferroccl" \
        "$dir/" || exit 1
    "$dir/ferroccl" ptx list >/dev/null || exit 1 # a build without PTX has nothing for a GPU
    # The examples are a workspace of their own.
    (cd examples/fused && cargo build --release --target-dir target) || exit 1
    cp examples/fused/target/release/fused "$dir/" || exit 1
    strip "$dir/gpu" "$dir/ferroccl" "$dir/fused"
    git describe --always --dirty >"$dir/commit"
    ls -l "$dir"
}

# part NAME COMMAND... : runs it, keeps its output, and notes how it went.
failed=0
part() {
    local name=$1 begun=$SECONDS status
    shift
    echo "== $name: $*" >&2
    timeout -k 10 "$((${MINUTES:-20} * 60))" "$@" >"$out/$name.txt" 2>&1
    status=$?
    if [ "$status" != 0 ]; then
        failed=1
        tail -5 "$out/$name.txt" >&2
    fi
    printf '| %s | %s | %d s |\n' "$name" \
        "$([ "$status" = 0 ] && echo "passed" || echo "**failed** ($status)")" "$((SECONDS - begun))" >>"$out/parts.md"
}

tests() { part tests "$dir/gpu"; }

fused() { part fused "$dir/fused" --gpu; }

sanitizers() {
    type -P compute-sanitizer >/dev/null || { echo "| sanitizers | no compute-sanitizer here | |" >>"$out/parts.md"; return; }
    local tool proto
    for tool in memcheck racecheck synccheck; do
        for proto in LL LL128 Simple; do
            part "$tool-$proto" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$dir/ferroccl" perf all_reduce -g 2 -b 8 -e 64K -f 64 -n 1 -w 0 -c 1 --proto "$proto" --channels 2 --runtime cuda
        done
    done
}

perf() {
    local collective proto ranks
    for ranks in 2 4 8; do
        for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter hypercube; do
            for proto in LL LL128 Simple; do
                # Checked up to 16 MiB: what is larger takes the host minutes to look at.
                part "perf-$collective-$proto-$ranks" bash -c "
                    '$dir/ferroccl' perf $collective -g $ranks -b 8 -e 16M -f 8 --proto $proto --runtime cuda &&
                    '$dir/ferroccl' perf $collective -g $ranks -b 128M -e 1G -f 8 -c 0 -n 5 --proto $proto --runtime cuda"
            done
        done
        # On windows; the largest are not checked, as above.
        for collective in all_reduce all_gather reduce_scatter; do
            part "perf-$collective-direct-$ranks" bash -c "
                '$dir/ferroccl' perf $collective -g $ranks -b 8 -e 16M -f 8 -R 2 --algo direct --runtime cuda &&
                '$dir/ferroccl' perf $collective -g $ranks -b 128M -e 1G -f 8 -c 0 -n 5 -R 2 --algo direct --runtime cuda"
        done
        # By a switch, a rank on each GPU.
        if (($(nvidia-smi -L | wc -l) >= ranks)); then
            for collective in all_reduce all_gather reduce_scatter; do
                part "perf-$collective-nvls-$ranks" bash -c "
                    '$dir/ferroccl' perf $collective -g $ranks -b 8 -e 16M -f 8 -R 2 --algo nvls --runtime cuda &&
                    '$dir/ferroccl' perf $collective -g $ranks -b 128M -e 1G -f 8 -c 0 -n 5 -R 2 --algo nvls --runtime cuda"
            done
        fi
        part "perf-all_reduce-chosen-$ranks" "$dir/ferroccl" perf all_reduce -g $ranks -b 8 -e 128M -f 4 -c 0 --runtime cuda
        part "perf-all_reduce-graph-$ranks" "$dir/ferroccl" perf all_reduce -g $ranks -b 8 -e 128M -f 4 -c 0 -G 5 --runtime cuda
    done
}

bench() {
    part bench "$dir/ferroccl" bench --runtime cuda --json "$out/bench.json" --svg "$out/bench.svg" --write-model "$out/gpu.json"
    part bench-blocks "$dir/ferroccl" bench barrier put copy reduce --blocks 32 -e 256M --runtime cuda
}

ncu() {
    type -P ncu >/dev/null || { echo "| ncu | no ncu here | |" >>"$out/parts.md"; return; }
    local proto
    # Kernels that wait for each other cannot be replayed one by one: the range is what perf times.
    part ncu-copy ncu --clock-control none --set full --launch-count 2 \
        "$dir/ferroccl" perf all_reduce -g 1 -b 256M -e 256M -n 2 -w 0 -c 0 --runtime cuda
    for proto in LL LL128 Simple; do
        part "ncu-$proto" ncu --clock-control none --replay-mode app-range --section SpeedOfLight \
            --section MemoryWorkloadAnalysis \
            "$dir/ferroccl" perf all_reduce -g 2 -b 64M -e 64M -n 1 -w 0 -c 0 --proto "$proto" --runtime cuda
    done
}

record() {
    {
        echo "# FerroCCL on a GPU"
        echo
        echo "$(date -u +%Y-%m-%d), commit $(cat "$dir/commit" 2>/dev/null || echo unknown), by \`benches/gpu.sh\`."
        echo
        echo '```text'
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv 2>&1
        echo '```'
        echo
        echo "| part | | |"
        echo "|---|---|---|"
        cat "$out/parts.md"
        local file
        for file in "$out"/bench*.txt "$out"/perf-all_reduce-*.txt; do
            [ -f "$file" ] || continue
            echo
            echo "$(basename "$file" .txt):"
            echo '```text'
            grep -E '^ |^# ' "$file"
            echo '```'
        done
    } >"$out/record.md"
    echo "$out/record.md" >&2
}

case ${1:-} in
pack) pack "${2:-$(dirname "$0")/../target/gpu}" ;;
run)
    dir=$(cd "${2:-$(dirname "$0")}" && pwd) || exit 1
    mkdir -p "${3:-$dir/out}" && out=$(cd "${3:-$dir/out}" && pwd) || exit 1
    [ -x "$dir/ferroccl" ] || { echo "$dir has no binaries: benches/gpu.sh pack" >&2; exit 1; }
    export FERROCCL_BIN=$dir/ferroccl
    # Ranks of a process have a stream each, which have to run beside each other.
    export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
    export FERROCCL_TIMEOUT=${FERROCCL_TIMEOUT:-60}
    shift $(($# < 3 ? $# : 3))
    for one in "${@:-tests fused sanitizers perf bench ncu}"; do
        for name in $one; do
            case $name in
            tests | fused | sanitizers | perf | bench | ncu) "$name" ;;
            *) usage ;;
            esac
        done
    done
    record
    exit $failed
    ;;
*) usage ;;
esac
