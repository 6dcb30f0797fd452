#!/bin/bash
# Everything that needs a GPU, in one call of under ten minutes and without a network.
#
#   tests/gpu.sh --fetch DIR   where Debian 12's packages can be had: downloads into DIR what the build needs (18 MB)
#   tests/gpu.sh [DIR]         on a machine with a GPU, the CUDA toolkit, CMake and a compiler: unpacks DIR's packages
#                              under build-gpu/, and runs these stages, the most telling first:
#
#   build       everything, in build-gpu/, kernels for this GPU alone
#   smoke       the GPU, the libraries that were found, and few steps of training on the host, one and four devices
#   suite       the tests that run on devices, on one logical device; what fails runs again, a process for each test
#   bench       training steps beside PyTorch's, where python3 (PYTHON) has it
#   operations  where a step's time goes: by operation, by kernel of ours, by kernel of PyTorch's
#   copies      broadcast and reduction between four logical devices beside a plain copy
#   demo, gan   the samples
#   memcheck    compute-sanitizer over the tests of our own kernels
#   racecheck   the same, for those kernels whose threads share memory
#   suite4      the suite where four logical devices on one GPU are what there is
#   host        the tests that need no GPU, on this machine's CPU
#
# The stages take longer than one call may. Calls one after the other, on what the first has unpacked and built:
#
#   STAGES="build smoke suite" tests/gpu.sh DIR
#   STAGES="bench operations" tests/gpu.sh
#   STAGES="memcheck racecheck copies demo gan" tests/gpu.sh
#   STAGES="suite4 host" tests/gpu.sh
#
# TESTS=REGEX runs only such tests. LIMIT (540) bounds the seconds in all: what doesn't fit is named as not run, which
# is a failure; PATIENCE multiplies the stages' own seconds (1). OUT (build-gpu/out) gets summary.txt, logs.tar.gz with
# a log for each stage, and the samples' pages. ARCHITECTURES names the kernels' GPUs, if they are not this one.
# smoke fails without cuBLAS, cuBLASLt or cuDNN, unless EVENKEEL_GPU_WITHOUT=cublas,cublaslt,cudnn names it.
#
# Each stage says how it went when it ends. The output ends with what matters: the failures, figures, one line for each
# stage, those too that were not reached if the call is ended early; in less than 12000 characters. The exit status says
# whether all went well.
#
# EMULATED=1 tries the script itself where there is no GPU: the kernels run on the CPU, few and small (TESTS: few), in
# build-gpu-emulated/. `tests/gpu.sh --lists` prints which programs and nets the stages name, for tests/test_gpu_lists.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

all_stages="build smoke suite bench operations copies demo gan memcheck racecheck suite4 host"
packages=(libdnnl-dev libdnnl2 ocl-icd-libopencl1 zlib1g-dev zlib1g libpng-dev libpng16-16
    libturbojpeg0-dev libturbojpeg0 check libsubunit-dev libsubunit0 pkgconf pkgconf-bin libpkgconf3
    dataset-fashion-mnist)

# Tests of kernels of our own, the most telling first. Threads of the first ones share memory.
sharing="ops_attention kernel_norm kernel_softmax kernel_reduce cuda_conv_direct kernel_matmul_own kernel_linear_own
    kernel_conv_own kernel_sort kernel_scan ops_moments kernel_norm_merge kernel_pool ops_recurrent kernel_copy kernel_optimizer
    kernel_resample ops_rearrange ops_losses"
kernels="$sharing kernel_index kernel_elementwise"
emulated_tests="cuda_devices kernel_softmax comm_broadcast schedule json"
# The net in whose step most is at stake comes first: the last ones may not be reached.
nets="resnet18-bf16@256 gpt2-bf16@8 mlp critic resnet18@256 resnet18-tf32@256 critic-layer segmentation@64"
export sharing kernels nets

fail() {
    echo "$0: $*" >&2
    exit 1
}

fetch() {
    local pictures=tests/samples/pictures.sh package set
    # shellcheck source=tests/samples/pictures.sh
    . "$pictures"
    mkdir -p "$1" && cd "$1" || fail "cannot write to $1"
    apt-get download "${packages[@]}" || fail "apt-get download failed (apt-get update first?)"
    # Of the training pictures, which are most of all that travels, as many as there are for tests.
    for package in dataset-fashion-mnist_*.deb; do
        dpkg-deb -x "$package" unpacked || fail "cannot unpack $package"
    done
    for set in train t10k; do
        EVENKEEL_FASHION_MNIST=unpacked/usr/share/datasets/fashion-mnist pictures fashion-mnist $set 10000
    done
    gzip -f fashion-mnist/* && rm -r unpacked dataset-fashion-mnist_*.deb
}

if [ "${1-}" = --lists ]; then
    # shellcheck disable=SC2086
    {
        printf 'memcheck test_%s\n' $kernels
        printf 'racecheck test_%s\n' $sharing
        printf 'suite test_%s\n' $emulated_tests
        printf 'bench %s\n' $nets
    }
    exit
fi
if [ "${1-}" = --fetch ]; then
    [ $# = 2 ] || fail "usage: $0 --fetch DIR"
    fetch "$2"
    exit
fi
[ $# -le 1 ] || fail "usage: $0 [DIR]"

# Read by the stages, each of which is a process of its own.
export emulated=${EMULATED:+1}
export build=$PWD/build-gpu
[ -z "$emulated" ] || build=$PWD/build-gpu-emulated
export out=${OUT:-$build/out}
export logs=$build/logs
export python=${PYTHON:-python3}
export cores
cores=$(nproc)
export tests=${TESTS:-.}
[ -z "$emulated" ] || tests=${TESTS:-"^test_(${emulated_tests// /|})\$"}
limit=${LIMIT:-540}
stages=${STAGES:-$all_stages}
for name in $stages; do
    [[ " $all_stages " = *" $name "* ]] || fail "there is no stage $name; there are $all_stages"
done
rm -rf "$logs"
mkdir -p "$out" "$logs" || fail "cannot write to $out and $logs"

# ---- what the machine has ----

find_gpu() {
    command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v nvcc >/dev/null || fail "there is no nvcc on PATH or in /usr/local/cuda/bin"
    nvidia-smi -L >"$logs/gpus.txt" 2>&1 || fail "nvidia-smi finds no GPU: $(cat "$logs/gpus.txt")"
}

# cuBLAS, cuDNN and NCCL where PyTorch's packages have put them, with their headers.
find_nvidia_packages() {
    local folder header
    while read -r folder; do
        [ -d "$folder/lib" ] && EVENKEEL_CUDA_LIBRARIES=${EVENKEEL_CUDA_LIBRARIES:+$EVENKEEL_CUDA_LIBRARIES:}$folder/lib
        for header in cublasLt.h cudnn.h nccl.h; do
            [ -e "$folder/include/$header" ] || continue
            CMAKE_INCLUDE_PATH=${CMAKE_INCLUDE_PATH:+$CMAKE_INCLUDE_PATH:}$folder/include
            break
        done
    done < <("$python" -c 'import glob, nvidia
for path in nvidia.__path__: print("\n".join(glob.glob(path + "/*/")))' 2>/dev/null)
    export EVENKEEL_CUDA_LIBRARIES=${EVENKEEL_CUDA_LIBRARIES-} CMAKE_INCLUDE_PATH=${CMAKE_INCLUDE_PATH-}
    # They open one another by name. An empty part of the path would be the current folder.
    [ -z "$EVENKEEL_CUDA_LIBRARIES" ] ||
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$EVENKEEL_CUDA_LIBRARIES
}

unpack() { # DIR
    local root=$build/root package link
    if [ ! -e "$root/unpacked" ]; then
        [ -n "$(find "$1" -name '*.deb' -print -quit)" ] || fail "there are no packages in $1: see --fetch"
        mkdir -p "$root"
        for package in "$1"/*.deb; do
            dpkg-deb -x "$package" "$root" || fail "cannot unpack $package"
        done
        mkdir -p "$root/usr/share/datasets" && cp -r "$1/fashion-mnist" "$root/usr/share/datasets" ||
            fail "there are no pictures in $1: see --fetch"
        # As if / were here: the folders of old names, and links that begin with it.
        if [ -d "$root/lib" ] && [ ! -L "$root/lib" ]; then
            cp -a "$root/lib/." "$root/usr/lib/" && rm -r "${root:?}/lib" && ln -s usr/lib "$root/lib"
        fi
        find "$root" -type l -lname '/*' | while read -r link; do
            ln -sfn "$root$(readlink "$link")" "$link"
        done
        touch "$root/unpacked"
    fi
}

# What this call or an earlier one has unpacked, as if it were installed.
use_unpacked() {
    local root=$build/root
    [ -e "$root/unpacked" ] || return 0
    local libraries=$root/usr/lib/x86_64-linux-gnu
    export CMAKE_PREFIX_PATH=$root/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
    export CPATH=$root/usr/include:$root/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}
    export PKG_CONFIG_PATH=$libraries/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export PKG_CONFIG_SYSROOT_DIR=$root
    # pkg-config may be missing here: the packages' own.
    command -v pkg-config >/dev/null || export PATH=$root/usr/bin:$PATH
    export EVENKEEL_FASHION_MNIST=${EVENKEEL_FASHION_MNIST:-$root/usr/share/datasets/fashion-mnist}
}

# ---- stages: functions that say how they went by their status ----

stage_build() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DEVENKEEL_TESTS=ON)
    if [ -n "$emulated" ]; then
        options+=(-DEVENKEEL_CUDA=EMULATED)
    else
        options+=(-DEVENKEEL_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-native}" -DEVENKEEL_TEST_TIMEOUT=150)
        # So that what compute-sanitizer finds has a line; the machine code is the same.
        options+=(-DCMAKE_CUDA_FLAGS=-lineinfo)
    fi
    [ -e "$build/CMakeCache.txt" ] || ! command -v ninja >/dev/null || options+=(-G Ninja)
    cmake -S . -B "$build" "${options[@]}" || return
    # After a failure on with the rest: one file that doesn't compile is not to hide another.
    if [ -e "$build/build.ninja" ]; then
        cmake --build "$build" -j "$cores" -- -k 0
    else
        cmake --build "$build" -j "$cores" -- -k
    fi
}

# The fourth step's loss of a few kinds of training; `nan` where one fails.
loss_of() { # DEVICE NET DEVICES
    DEVICE=$1 "$build/tests/bench/bench_train" "$2" "$3" 2 0.1 | awk '{ print $5 }' | grep . || echo nan
}

# What is to be open and isn't, of what bench_operations says: without it all goes on, with kernels of our own.
missing_libraries() { # FILE
    local name without=${EVENKEEL_GPU_WITHOUT-} rc=0
    [ -z "$emulated" ] || without=${EVENKEEL_GPU_WITHOUT-cudnn}
    for name in cuBLAS cuBLASLt cuDNN; do
        grep -q "^ *$name is open" "$1" && continue
        [[ ",$without," = *",${name,,},"* ]] && echo "without $name, as EVENKEEL_GPU_WITHOUT says" && continue
        echo "FAILED: $name is not open: $(grep -m 1 "^ *$name cannot be used" "$1")"
        rc=1
    done
    return $rc
}

stage_smoke() {
    local net tolerance least host one four rc=0
    DEVICE=cuda "$build/tests/bench/bench_operations" mnist@2 1 libraries >"$logs/libraries.txt" 2>&1 || rc=1
    cat "$logs/libraries.txt"
    missing_libraries "$logs/libraries.txt" || rc=1
    # The last is absolute: losses of critics may be near 0.
    while read -r net tolerance least; do
        host=$(loss_of host "$net" 1) one=$(loss_of cuda "$net" 1) four=$(loss_of cuda "$net" 4)
        awk -v net="$net" -v tolerance="$tolerance" -v least="$least" -v host="$host" -v one="$one" -v four="$four" '
            function number(a) { return a ~ /^[0-9.-]+$/ }
            function far(a) { return !(number(a) && number(host) && (a - host) ^ 2 <= (tolerance * (host < 0 ? -host : host) + least) ^ 2) }
            BEGIN {
                bad = far(one) || far(four)
                printf "%-16s loss on the host %s, one device %s, four %s%s\n", net, host, one, four, bad ? ": FAILED" : ""
                exit bad
            }' || rc=1
    done < <(echo "mnist@2 1e-4 0" && [ -z "$emulated" ] &&
        printf '%s\n' "mnist-bf16@8 2e-2 0" "gpt-bf16@4 2e-2 0" "critic-layer@4 1e-3 1e-3")
    return $rc
}

# ctest within some seconds: what it had no time for is a failure, which it leaves out of its count.
run_tests() { # SECONDS ctest's options...
    local log rc within=$(($1 < 5 ? 5 : $1)) # a time that is past already would be tomorrow's
    log=$(mktemp)
    ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(((cores + 1) / 2))" \
        --stop-time "$(date -d "+$within seconds" +%H:%M:%S)" "${@:2}" 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    if grep -q 'stop time has been passed' "$log"; then
        sed -nE 's#^ *([0-9]+)/([0-9]+) Test .*#\1 of \2 tests begun: time was over#p' "$log" | tail -n 1
        rc=1
    fi
    rm "$log"
    return "$rc"
}

# A GPU that no process uses is switched off by its driver, and takes seconds to come back.
keep_gpu_awake() {
    [ -z "$emulated" ] || return 0
    nvidia-smi --query-gpu=clocks.sm --format=csv --loop=10 >/dev/null 2>&1 &
    # shellcheck disable=SC2064
    trap "kill $!" EXIT # of the stage
}

# Many tests are small, and a GPU takes its time to come up in a process: a program's tests run in one process, as long
# as they succeed there. Those that don't, and could not, run again.
run_suite() { # ctest's options...
    local log rc
    log=$(mktemp)
    export OMP_NUM_THREADS=2 EVENKEEL_TEST_DEVICES=cuda
    keep_gpu_awake
    CK_FORK=no run_tests $((seconds * 2 / 3)) -L 'cuda|devices' -R "$tests" "$@" | tee "$log"
    rc=${PIPESTATUS[0]}
    if [ "$rc" != 0 ] && grep -q '^The following tests FAILED' "$log"; then
        echo "==== again, each test in a process of its own ===="
        run_tests $((seconds / 3 - 10)) --rerun-failed && ! grep -q 'time was over$' "$log"
        rc=$?
    fi
    rm "$log"
    return "$rc"
}

stage_suite() {
    export EVENKEEL_TEST_FULL=1
    [ -z "$emulated" ] || export EVENKEEL_TEST_SHORT=1
    run_suite -LE 'bench|install'
}

stage_suite4() {
    export EVENKEEL_TEST_SHORT=1 EVENKEEL_CUDA_DEVICES=0,0,0,0
    run_suite -LE 'bench|install|samples'
}

stage_host() {
    OMP_NUM_THREADS=4 run_tests $((seconds - 10)) -LE 'bench|install|samples|cuda|devices' -R "$tests"
}

# One round: times on a GPU that nobody else uses vary little. Python starts once.
stage_bench() {
    export DEVICE=cuda BUILD=$build PYTHON=$python ROUNDS=1 SECONDS_EACH=2 COMPILE=no
    if [ -n "$emulated" ]; then
        ROOFLINE=64 TWINS=no SECONDS_EACH=0.1 SETTINGS="1 2" tests/bench/run mnist@2 gpt-bf16@1
        return
    fi
    local rc=0
    # shellcheck disable=SC2086
    SETTINGS=1 tests/bench/run $nets || rc=1
    TWINS=no SETTINGS=4 tests/bench/run resnet18@256 | grep '^resnet18' || rc=1
    return $rc
}

# ncu leaves the clocks alone, and takes one pass for the time of each kernel.
kernels_of() { # NET: the step after those that choose algorithms
    ncu --clock-control none --target-processes all --metrics gpu__time_duration.sum --print-units base --csv --log-file "$logs/ncu-$1.csv" \
        --profile-from-start off "$build/tests/bench/bench_operations" "$1" 1 kernels >"$logs/ncu-$1.log" 2>&1 || {
        tail -n 5 "$logs/ncu-$1.log" "$logs/ncu-$1.csv"
        return 1
    }
    python3 tests/bench/kernels.py "$logs/ncu-$1.csv"
}

stage_operations() {
    export DEVICE=cuda
    local net rc=0 nets="resnet18-bf16@256 gpt2-bf16@8"
    [ -z "$emulated" ] || nets=mnist@2
    for net in $nets; do
        echo "---- $net, our operations"
        CUDA_LAUNCH_BLOCKING=1 EK_EMULATOR_ORDER=eager "$build/tests/bench/bench_operations" "$net" 1 || rc=1
        [ -z "$emulated" ] || continue
        echo "---- $net, our kernels"
        kernels_of "$net" || rc=1
    done
    # shellcheck disable=SC2086
    [ -n "$emulated" ] || "$python" -W ignore tests/bench/train.py --profile $nets || rc=1
    return $rc
}

stage_copies() {
    "$build/tests/bench/bench_copies" 4 "$([ -n "$emulated" ] && echo 0.1 || echo 100)" cuda
}

stage_demo() {
    local size=()
    [ -z "$emulated" ] || size=(--steps 1 --batch 4 --scenes 16 --test-scenes 4 --size 32 --width 4)
    "$build/samples/imbalance" --device cuda --devices 4 --json "$logs/imbalance.json" \
        --html "$out/imbalance.html" "${size[@]}"
}

stage_gan() {
    local size=(--steps 100)
    [ -z "$emulated" ] || size=(--steps 1 --batch 4 --critic-steps 1 --width 4)
    mkdir -p "$logs/gan" && "$build/samples/gan" --device cuda --devices 2 "${size[@]}" \
        --out "$logs/gan" --json "$logs/gan.json"
}

# One program under a tool, which slows it ten to a hundred times: what was seen by the time it is stopped counts.
sanitize_one() { # TOOL PROGRAM
    local log=$logs/$1-${2##*/}.log rest=$((deadline - $(date +%s) - 5)) word=clean rc
    [ "$rest" -gt 5 ] || {
        echo "not run: ${2##*/}"
        return 0
    }
    [ -x "$2" ] || {
        echo "NO PROGRAM: ${2##*/}"
        return 0
    }
    # Some programs' work on GPUs is done by their children alone.
    CK_FORK=no OMP_NUM_THREADS=2 EVENKEEL_TEST_DEVICES=cuda EVENKEEL_TEST_SHORT=1 \
        timeout "$((rest < 60 ? rest : 60))" compute-sanitizer --tool "$1" --error-exitcode 99 --launch-timeout 0 \
        --report-api-errors no --target-processes all --require-cuda-init no \
        "$2" >"$log" 2>&1
    rc=$?
    grep -q '=* COMPUTE-SANITIZER' "$log" || word="NOT WATCHED (exit $rc)"
    [ $rc != 0 ] || ! grep -qE 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$log" || rc=99 # a child's
    case $rc in
    0) ;;
    77) word=skipped ;;
    99) word="ERRORS FOUND" ;;
    124) grep -qE '=+ (Invalid|Error|Warning|Race|Program hit)' "$log" && word="ERRORS FOUND" || word="clean until stopped" ;;
    *) word="FAILED (exit $rc)" ;;
    esac
    echo "$word: ${2##*/}"
    case $word in
    clean* | skipped) ;;
    *) grep -E '=+ (Invalid|Error|Warning|Race|Program hit|    at |    by )|:[FE]:' "$log" | head -n 6 | cut -c 1-200 |
        sed "s/^/${2##*/}: /" ;;
    esac
}

# Those for which there is no time are no failure. cuBLAS's and cuDNN's kernels would take most of it.
sanitize() { # TOOL, names of programs without test_
    if [ -n "$emulated" ]; then
        echo "the emulator has no compute-sanitizer (tests/check --sanitize does its work there)"
        return
    fi
    local log=$logs/$1-programs.log
    export EVENKEEL_SEGMENTS=0 # each request has an allocation of its own, beyond which nothing is to be read
    export EVENKEEL_CUDA_WITHOUT=cublas,cublaslt,cudnn,nccl
    printf '%s\n' "${@:2}" | xargs -P 10 -I{} bash -c 'sanitize_one "$@"' _ "$1" "$build/tests/test_{}" | tee "$log"
    ! grep -qE '^(NO PROGRAM|NOT WATCHED|ERRORS FOUND|FAILED)' "$log" && grep -q '^clean' "$log"
}

# shellcheck disable=SC2086
stage_memcheck() { sanitize memcheck $kernels; }

# shellcheck disable=SC2086
stage_racecheck() { sanitize racecheck $sharing; }

# ---- one after another ----

declare -A most=([build]=330 [smoke]=60 [suite]=300 [bench]=240 [operations]=200 [copies]=30 [demo]=60 [gan]=60
    [memcheck]=200 [racecheck]=150 [suite4]=200 [host]=120)
declare -a summary
declare -A concluded
ok=true

conclude() { # STAGE TEXT
    summary+=("$(printf '%-12s %s' "$1" "$2")")
    concluded[$1]=yes
    printf '%s\n' "${summary[@]}" >"$out/summary.txt"
    echo "${summary[-1]}"
    tar -czf "$out/logs.tar.gz" -C "$build" logs
}

# The lines of a log that tell most of what went wrong: where tests ran twice, the second time.
excerpt() { # LOG
    local telling=':[FE]:|\*\*\*|error:|rror: |Exception:|FAILED|^ERRORS FOUND|^NOT WATCHED|^NO PROGRAM|: =====|: nan'
    awk '/^==== again/ { n = 0 } { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }' "$1" >"$1.last"
    if grep -qE "$telling" "$1.last"; then
        grep -E "$telling" "$1.last" | grep -v '\*\*\*Not Run' | awk '!seen[$0]++' | head -n 30
        grep -c '\*\*\*Not Run' "$1.last" | sed -n '/^0$/! s/$/ not run: they are not built/p'
    else
        tail -n 12 "$1.last"
    fi | sed "s#$PWD/##g" | cut -c 1-300 | head -c 2500
}

# Within its seconds and what is left of all.
run_stage() { # STAGE
    local log=$logs/$1.log begin=$SECONDS rc
    export seconds=$((${most[$1]} * ${PATIENCE:-1})) deadline
    [ "$seconds" -lt $((limit - SECONDS)) ] || seconds=$((limit - SECONDS))
    if [ "$seconds" -lt 20 ]; then
        ok=false
        conclude "$1" "not run: no time is left"
        return
    fi
    deadline=$(($(date +%s) + seconds))
    echo "$1 ..."
    timeout -k 5 "$seconds" bash -c "stage_$1" >"$log" 2>&1 &
    stage_process=$! # waited for, so that a signal is not kept until the stage ends
    wait "$stage_process"
    rc=$?
    stage_process=
    if [ $rc = 0 ]; then
        conclude "$1" "$(printf 'well   %4d s  %s' $((SECONDS - begin)) "$(remark "$log")")"
        return
    fi
    ok=false
    excerpt "$log" >"$logs/$1.failure"
    conclude "$1" "$(printf 'FAILED %4d s  %s' $((SECONDS - begin)) \
        "$([ $rc = 124 ] && echo "ran past $seconds s; ")$(remark "$log")")"
}

# What ctest or a sanitizer counted.
remark() { # LOG
    {
        grep -hE '% tests passed|time was over$' "$1"
        grep -hoE '^(clean until stopped|clean|skipped|not run|NO PROGRAM|ERRORS FOUND|FAILED|NOT WATCHED)' "$1" | sort | uniq -c
        sed -nE 's/^ *lib(cudnn|cublas)(Lt)?\.so[^:]*: version ([0-9]+),.*/\1 \3/p' "$1"
    } | sed 's/^ *//' | paste -s -d ';' | sed 's/;/; /g'
}

figures() {
    local name
    for name in smoke operations copies bench; do
        [ -s "$logs/$name.log" ] && echo "---- $name ----" && cut -c 1-160 "$logs/$name.log" | tail -n 75
    done
}

if [ -n "$emulated" ]; then
    echo "emulated on the CPU" >"$logs/gpus.txt"
else
    find_gpu
fi
find_nvidia_packages
[ $# = 0 ] || unpack "$(realpath "$1")"
use_unpacked
while read -r name; do export -f "${name?}"; done < <(compgen -A function)

# However the call ends: what there is and what is missing.
report() { # STATUS [WHAT TO SAY OF STAGES THAT WERE NOT REACHED]
    trap - EXIT TERM INT HUP
    [ -z "${stage_process-}" ] || kill -TERM "$stage_process" 2>/dev/null
    local name log
    for name in $stages; do
        [ -n "${concluded[$name]-}" ] && continue
        ok=false
        conclude "$name" "$2" >/dev/null
    done
    {
        for log in "$logs"/*.failure; do
            [ -s "$log" ] && echo "---- failure: $(basename "$log" .failure) ----" && cat "$log"
        done | head -c 5000
        figures | head -c 5500
        echo
        cat "$logs/gpus.txt" "$out/summary.txt"
    } | tail -c 11500
    $ok && exit "$1"
    exit $(($1 == 0 ? 1 : $1))
}
trap 'report $? "not run: the call has ended"' EXIT
trap 'report 143 "not run, or not to its end: the call was ended"' TERM INT HUP

for name in $stages; do
    run_stage "$name"
    if [ "$name" = build ] && [ ! -x "$build/tests/bench/bench_train" ]; then
        report 1 "not run: the build failed"
    fi
done
report 0
