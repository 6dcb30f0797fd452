#!/bin/bash
# Runs everything that needs a GPU, in a few calls of under ten minutes each and without a network.
#
#   tests/gpu.sh --fetch DIR   on a machine with a network and Debian 12: downloads into DIR the packages that the build
#                              needs (18 MB)
#   tests/gpu.sh --size [DIR]  prints how many bytes have to be copied to the machine with the GPU: the files of this
#                              tree that git does not ignore, and DIR. More than 50 MiB are a failure
#   tests/gpu.sh --times       prints the calls below, with the limit and the estimated seconds of each stage
#   tests/gpu.sh [DIR]         on a machine with a GPU, the CUDA toolkit, CMake and a compiler: unpacks DIR's packages
#                              under build-gpu/, and runs these stages, the most telling first:
#
#   build       everything, in build-gpu/, kernels for this GPU alone
#   smoke       the GPU, the libraries that were found, and four steps of training on the host, one and four devices
#   suite       the tests that run on devices, on one logical device; tests that fail run again in separate processes
#   bench       training steps beside PyTorch's, if python3 (PYTHON) has PyTorch
#   operations  the time of a step by operation, by our kernels, and by PyTorch's kernels
#   copies      broadcast and reduction between four logical devices beside a plain copy
#   demo, gan   the samples
#   memcheck    compute-sanitizer over the tests of our own kernels
#   racecheck   compute-sanitizer's search for races over the same tests
#   suite4      the suite on four logical devices of one GPU
#   host        the tests that need no GPU, on this machine's CPU
#
# All stages together take longer than one call may. So they are called in parts, after the first of which DIR is
# unpacked and everything is built:
#
#   STAGES="build smoke suite" tests/gpu.sh DIR
#   STAGES="bench operations copies" tests/gpu.sh
#   STAGES="memcheck racecheck demo gan" tests/gpu.sh
#   STAGES="suite4 host" tests/gpu.sh
#
# TESTS=REGEX runs only such tests. LIMIT (540) bounds the seconds of a call. PATIENCE multiplies the stages' own limits
# (1). OUT (build-gpu/out) gets summary.txt, logs.tar.gz with a log for each stage, and the samples' pages.
# ARCHITECTURES names other GPUs for which kernels are compiled. EVENKEEL_GPU_WITHOUT=cublas,cublaslt,cudnn names
# libraries that may be missing.
#
# Each stage prints its result when it ends. The last 12000 characters of the output have the failures, the figures, and
# a line for each stage, also if a signal ends the call. The exit status is 0 if all went well. A stage's line counts the
# words below, and its log has a name after each:
#
#   FAILED                the test or stage ran, and something is wrong
#   STOPPED BY ITS LIMIT  the test or stage was not done in its seconds
#   NEVER REACHED         the seconds of the stage, or of the call, were over before: nothing is known
#   NO PROGRAM            the program was not built
#   NO LIBRARY            cuBLAS, cuBLASLt or cuDNN cannot be opened, so that our own kernels would compute instead
#   ERRORS FOUND          compute-sanitizer has found errors
#   NOT WATCHED           compute-sanitizer did not start
#
# EMULATED=1 tries the script on a machine without a GPU: the CPU runs few and small tests and nets in
# build-gpu-emulated/. `tests/gpu.sh --lists` prints which programs and nets the stages name, for tests/test_gpu_lists.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

all_stages="build smoke suite bench operations copies demo gan memcheck racecheck suite4 host"
packages=(libdnnl-dev libdnnl2 ocl-icd-libopencl1 zlib1g-dev zlib1g libpng-dev libpng16-16
    libturbojpeg0-dev libturbojpeg0 check libsubunit-dev libsubunit0 pkgconf pkgconf-bin libpkgconf3
    dataset-fashion-mnist)

# The files of src/cuda whose kernels compute-sanitizer watches, and the programs that test them, the most telling first.
# combine.cu needs ranks with a GPU each, and has no program here.
watched="attention:ops_attention norm_line,norm_row,norm_sums,norm_join:kernel_norm,kernel_norm_merge,ops_moments
    softmax:kernel_softmax,ops_losses reduce:kernel_reduce
    conv_direct:cuda_conv_direct,kernel_conv_own matmul:kernel_matmul_own,kernel_linear_own
    sort:kernel_sort scan:kernel_scan,ops_rearrange avg_pool,max_pool:kernel_pool recurrent:ops_recurrent copy:kernel_copy
    lists:kernel_optimizer resample,grid_sample:kernel_resample,ops_resample random:kernel_random index:kernel_index
    elementwise,mathematics,compare:kernel_elementwise combine:"
kernels=
for name in $watched; do
    kernels+=" ${name#*:}"
done
kernels=${kernels//,/ }
emulated_tests="cuda_devices kernel_softmax comm_broadcast schedule json"
# The net in whose step most is at stake comes first: the last ones may not be reached. NET-default has both sides'
# defaults; all others have equal settings.
nets="gpt2-bf16@8 resnet18-bf16@256 lstm512 mlp critic gpt2-bf16-clip@8 resnet18-default@256 resnet18@256
    resnet18-tf32@256 lstm512-default critic-layer segmentation@64"
export kernels nets

# Limits in seconds. Estimates are for a machine with an H200 and 16 cores.
calls=("build smoke suite" "bench operations copies" "memcheck racecheck demo gan" "suite4 host")
declare -A most=([build]=270 [smoke]=50 [suite]=220 [bench]=300 [operations]=200 [copies]=30 [demo]=60 [gan]=60
    [memcheck]=200 [racecheck]=150 [suite4]=200 [host]=120)
declare -A about=([build]=170 [smoke]=40 [suite]=160 [operations]=110 [copies]=5 [demo]=25 [gan]=20
    [suite4]=150 [host]=90
    [bench]=$(($(wc -w <<<"$nets") * 18 + 35)) # a row takes 8 seconds, and its twin in two formats 10
    [memcheck]=$(($(wc -w <<<"$kernels") * 5)) # ten programs at once, stopped after 60 seconds
    [racecheck]=$(($(wc -w <<<"$kernels") * 5)))
most_bytes=$((50 << 20)) # that have to be copied

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
    # The training pictures are most of the bytes: 10000 of them are enough.
    for package in dataset-fashion-mnist_*.deb; do
        dpkg-deb -x "$package" unpacked || fail "cannot unpack $package"
    done
    for set in train t10k; do
        EVENKEEL_FASHION_MNIST=unpacked/usr/share/datasets/fashion-mnist pictures fashion-mnist $set 10000
    done
    gzip -f fashion-mnist/* && rm -r unpacked dataset-fashion-mnist_*.deb
    cd "$OLDPWD" && show_size "$1"
}

bytes_of() { # reads names, with NUL between
    xargs -0r stat -c %s -- | awk '{ sum += $1 } END { printf "%d\n", sum }'
}

show_size() { # [DIR]
    local tree fetched=0
    [ -z "${1-}" ] || [ -d "$1" ] || fail "there is no folder $1"
    tree=$(git ls-files -co --exclude-standard -z ${1:+-- . ":!$1"} | bytes_of) || fail "this is no clone of git's"
    [ -z "${1-}" ] || fetched=$(find "$1" -type f -print0 | bytes_of)
    echo "the tree has $tree bytes, the packages $fetched, both $((tree + fetched)) of $most_bytes"
    [ $((tree + fetched)) -le "$most_bytes" ] || fail "that is too much: see 'git ls-files -co --exclude-standard'"
}

show_times() {
    local call name limits estimates all=0
    for call in "${calls[@]}"; do
        limits=0 estimates=0
        echo "STAGES=\"$call\""
        for name in $call; do
            printf '    %-12s limit %4d s, about %4d s\n' "$name" "${most[$name]}" "${about[$name]}"
            limits=$((limits + most[$name])) estimates=$((estimates + about[$name]))
        done
        printf '    %-12s limit %4d s, about %4d s\n' "in all" "$limits" "$estimates"
        all=$((all + estimates))
    done
    echo "${#calls[@]} calls, about $all s"
}

if [ "${1-}" = --lists ]; then
    # shellcheck disable=SC2086
    {
        printf 'watched %s\n' $watched
        printf 'memcheck test_%s\n' $kernels
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
if [ "${1-}" = --size ]; then
    [ $# -le 2 ] || fail "usage: $0 --size [DIR]"
    show_size "${@:2}"
    exit
fi
if [ "${1-}" = --times ]; then
    show_times
    exit
fi
[ $# -le 1 ] || fail "usage: $0 [DIR]"

# Stages are separate processes and read these variables.
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

# Finds cuBLAS, cuDNN and NCCL, and their headers, in PyTorch's packages.
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
    # These libraries open one another by name. An empty part of the path would be the current folder.
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
        # Makes $root a file system: /lib leads to /usr/lib, and absolute links begin with $root.
        if [ -d "$root/lib" ] && [ ! -L "$root/lib" ]; then
            cp -a "$root/lib/." "$root/usr/lib/" && rm -r "${root:?}/lib" && ln -s usr/lib "$root/lib"
        fi
        find "$root" -type l -lname '/*' | while read -r link; do
            ln -sfn "$root$(readlink "$link")" "$link"
        done
        touch "$root/unpacked"
    fi
}

# Sets the paths of the packages that this call or an earlier one has unpacked.
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
    # If this machine has no pkg-config, the packages have one.
    command -v pkg-config >/dev/null || export PATH=$root/usr/bin:$PATH
    export EVENKEEL_FASHION_MNIST=${EVENKEEL_FASHION_MNIST:-$root/usr/share/datasets/fashion-mnist}
}

# ---- stages: functions whose status is the result ----

stage_build() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DEVENKEEL_TESTS=ON)
    if [ -n "$emulated" ]; then
        options+=(-DEVENKEEL_CUDA=EMULATED)
    else
        options+=(-DEVENKEEL_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-native}" -DEVENKEEL_TEST_TIMEOUT=150)
        # With lines for compute-sanitizer's errors. The machine code does not change.
        options+=(-DCMAKE_CUDA_FLAGS=-lineinfo)
    fi
    [ -e "$build/CMakeCache.txt" ] || ! command -v ninja >/dev/null || options+=(-G Ninja)
    cmake -S . -B "$build" "${options[@]}" || return
    # -k: a file that doesn't compile must not hide the errors of another file.
    if [ -e "$build/build.ninja" ]; then
        cmake --build "$build" -j "$cores" -- -k 0
    else
        cmake --build "$build" -j "$cores" -- -k
    fi
}

# Prints the loss of a net's fourth step, or `nan` if a step fails.
loss_of() { # DEVICE NET DEVICES
    DEVICE=$1 "$build/tests/bench/bench_train" "$2" "$3" 2 0.1 | awk '{ print $5 }' | grep . || echo nan
}

# Names the libraries that are not open, as bench_operations says. Without them our own kernels compute.
missing_libraries() { # FILE
    local name without=${EVENKEEL_GPU_WITHOUT-} rc=0
    [ -z "$emulated" ] || without=${EVENKEEL_GPU_WITHOUT-cudnn}
    for name in cuBLAS cuBLASLt cuDNN; do
        grep -q "^ *$name is open" "$1" && continue
        [[ ",$without," = *",${name,,},"* ]] && echo "without $name, as EVENKEEL_GPU_WITHOUT says" && continue
        echo "NO LIBRARY: $name: $(grep -m 1 "^ *$name cannot be used" "$1" || echo "nothing is said of it")"
        rc=1
    done
    return $rc
}

stage_smoke() {
    local net tolerance least host one four rc=0
    DEVICE=cuda "$build/tests/bench/bench_operations" mnist@2 1 libraries >"$logs/libraries.txt" 2>&1 || rc=1
    cat "$logs/libraries.txt"
    missing_libraries "$logs/libraries.txt" || rc=1
    # A net, its relative tolerance, and an absolute one, because losses of critics may be near 0.
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

# Runs ctest for at most so many seconds, and prints a word for each test that has not passed.
run_tests() { # SECONDS ctest's options...
    local log rc within=$(($1 < 5 ? 5 : $1)) # a time that is past already would be tomorrow's
    log=$(mktemp)
    ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(((cores + 1) / 2))" \
        --stop-time "$(date -d "+$within seconds" +%H:%M:%S)" "${@:2}" 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    grep -q '^No tests were found' "$log" && echo "NO PROGRAM: no test has such a name: $tests"
    # No line of ctest's names a test that it never started.
    ctest --test-dir "$build" -N "${@:2}" 2>/dev/null | sed -nE 's/^ *Test +#[0-9]+: //p' | awk -v lines="$log" '
        BEGIN {
            while ((getline line < lines) > 0)
                if (line ~ /^ *[0-9]+\/[0-9]+ Test +#/) {
                    split(line, word)
                    seen[word[4]] = line
                }
        }
        !($1 in seen) { print "NEVER REACHED: " $1; next }
        { line = seen[$1] }
        line ~ /\*\*\*Timeout/ { print "STOPPED BY ITS LIMIT: " $1 " after" substr(line, index(line, "Timeout") + 7) }
        line ~ /\*\*\*Not Run/ { print "NO PROGRAM: " $1 }
        line ~ /\*\*\*(Failed|Exception)/ { print "FAILED: " $1 }' >"$log.words"
    cat "$log.words"
    ! grep -q '^NEVER REACHED' "$log.words" || rc=1 # ctest does not count them
    rm "$log" "$log.words"
    return "$rc"
}

# Keeps the driver from switching off a GPU that no process uses, which then takes seconds to come back.
keep_gpu_awake() {
    [ -z "$emulated" ] || return 0
    nvidia-smi --query-gpu=clocks.sm --format=csv --loop=10 >/dev/null 2>&1 &
    # shellcheck disable=SC2064
    trap "kill $!" EXIT # of the stage
}

# Runs all tests of a program in one process, because opening a GPU takes longer than most tests. Programs that fail run
# again with a process for each test.
run_suite() { # ctest's options...
    local log rc
    log=$(mktemp)
    export OMP_NUM_THREADS=2 EVENKEEL_TEST_DEVICES=cuda
    keep_gpu_awake
    CK_FORK=no run_tests $((seconds * 2 / 3)) -L 'cuda|devices' -R "$tests" "$@" | tee "$log"
    rc=${PIPESTATUS[0]}
    if [ "$rc" != 0 ] && grep -q '^The following tests FAILED' "$log"; then
        echo "==== again, each test in a process of its own ===="
        grep '^NEVER REACHED' "$log" # the second run does not name them
        run_tests $((seconds / 3 - 10)) --rerun-failed && ! grep -q '^NEVER REACHED' "$log"
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

# Times each net in one round, because times on a GPU that nobody else uses vary little. Python starts once.
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

# Prints which kernels take the time of a step. ncu leaves the clocks alone and needs one pass.
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

# Runs one program under a tool, which makes it ten to a hundred times slower. If the program is stopped, the result is
# what the tool has found by then.
sanitize_one() { # TOOL PROGRAM
    local log=$logs/$1-${2##*/}.log rest=$((deadline - $(date +%s) - 5)) word=clean rc
    [ -x "$2" ] || {
        echo "NO PROGRAM: ${2##*/}"
        return 0
    }
    [ "$rest" -gt 5 ] || {
        echo "NEVER REACHED: ${2##*/}"
        return 0
    }
    # The tool also watches children: in some programs they alone use GPUs.
    CK_FORK=no OMP_NUM_THREADS=2 EVENKEEL_TEST_DEVICES=cuda EVENKEEL_TEST_SHORT=1 EVENKEEL_TEST_COUNT=1 \
        timeout "$((rest < 60 ? rest : 60))" compute-sanitizer --tool "$1" --error-exitcode 99 --launch-timeout 0 \
        --report-api-errors no --target-processes all --require-cuda-init no \
        "$2" >"$log" 2>&1
    rc=$?
    [ $rc != 0 ] || ! grep -qE 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$log" || rc=99 # a child's
    case $rc in
    0) ;;
    77) word=skipped ;;
    99) word="ERRORS FOUND" ;;
    124) grep -qE '=+ (Invalid|Error|Warning|Race|Program hit)' "$log" && word="ERRORS FOUND" ||
        word="clean until STOPPED BY ITS LIMIT, after $(grep -c '^a test has ended$' "$log") tests" ;;
    *) word="FAILED (exit $rc)" ;;
    esac
    grep -q '=* COMPUTE-SANITIZER' "$log" || word="NOT WATCHED (exit $rc)"
    echo "$word: ${2##*/}"
    case $word in
    clean* | skipped) ;;
    *) grep -E '=+ (Invalid|Error|Warning|Race|Program hit|    at |    by )|:[FE]:' "$log" | head -n 6 | cut -c 1-200 |
        sed "s/^/${2##*/}: /" ;;
    esac
}

# Runs programs under a tool, without cuBLAS and cuDNN, whose kernels would take most of the time. Programs that are
# stopped, or never reached, are no failure.
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
stage_racecheck() { sanitize racecheck $kernels; }

# ---- one after another ----

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

# Prints the lines of a log that tell most about a failure. LOG.last begins where tests ran a second time.
excerpt() { # LOG
    local telling=':[FE]:|error:|rror: |Exception:|: FAILED|: =====|: nan|^(FAILED|ERRORS FOUND|NOT WATCHED)'
    telling+='|^(NO |NEVER REACHED|STOPPED)'
    if grep -qE "$telling" "$1.last"; then
        # At most five names with one word.
        grep -E "$telling" "$1.last" | awk '!seen[$0]++ && !(/^N[A-Z ]+:/ && count[$1 $2]++ >= 5)' | head -n 30
    else
        tail -n 12 "$1.last"
    fi | sed "s#$PWD/##g" | cut -c 1-300 | head -c 2500
}

# Runs a stage for at most its seconds and the seconds that are left of the call.
run_stage() { # STAGE
    local log=$logs/$1.log begin=$SECONDS rc
    export seconds=$((${most[$1]} * ${PATIENCE:-1})) deadline
    [ "$seconds" -lt $((limit - SECONDS)) ] || seconds=$((limit - SECONDS))
    if [ "$seconds" -lt 20 ]; then
        ok=false
        conclude "$1" "NEVER REACHED: no time is left"
        return
    fi
    deadline=$(($(date +%s) + seconds))
    echo "$1 ..."
    timeout -k 5 "$seconds" bash -c "stage_$1" >"$log" 2>&1 &
    stage_process=$! # with `wait`, so that a signal ends the call before the stage ends
    wait "$stage_process"
    rc=$?
    stage_process=
    awk '/^==== again/ { n = 0 } { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }' "$log" >"$log.last"
    if [ $rc = 0 ]; then
        conclude "$1" "$(printf 'well   %4d s  %s' $((SECONDS - begin)) "$(remark "$log")")"
        return
    fi
    ok=false
    excerpt "$log" >"$logs/$1.failure"
    conclude "$1" "$(printf 'FAILED %4d s  %s' $((SECONDS - begin)) \
        "$([ $rc = 124 ] && echo "STOPPED BY ITS LIMIT of $seconds s; ")$(remark "$log")")"
}

# Prints what ctest or a sanitizer has counted, and versions of libraries.
remark() { # LOG
    {
        grep -hE '% tests passed' "$1.last"
        grep -hoE -e '^(clean until STOPPED|clean|skipped|FAILED|STOPPED BY ITS LIMIT|NEVER REACHED)' \
            -e '^(NO PROGRAM|NO LIBRARY|ERRORS FOUND|NOT WATCHED)' "$1.last" | sort | uniq -c
        sed -nE 's/^ *lib(cudnn|cublas)(Lt)?\.so[^:]*: version ([0-9]+),.*/\1 \3/p' "$1"
    } | sed 's/^ *//' | paste -s -d ';' | sed 's/;/; /g'
}

figures() {
    local name
    for name in smoke bench operations copies; do
        [ -s "$logs/$name.log" ] && echo "---- $name ----" && cut -c 1-180 "$logs/$name.log" | tail -n 75
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

# Prints the failures, figures and stages, and ends the call.
report() { # STATUS [WHAT TO SAY OF STAGES THAT WERE NOT REACHED]
    trap - EXIT TERM INT HUP
    [ -z "${stage_process-}" ] || kill -TERM "$stage_process" 2>/dev/null
    local name log failures
    for name in $stages; do
        [ -n "${concluded[$name]-}" ] && continue
        ok=false
        conclude "$name" "$2" >/dev/null
    done
    failures=$(for log in "$logs"/*.failure; do
        [ -s "$log" ] && echo "---- failure: $(basename "$log" .failure) ----" && cat "$log"
    done | head -c 5000)
    {
        echo "$failures"
        figures | head -c $((10000 - ${#failures}))
        echo
        cat "$logs/gpus.txt" "$out/summary.txt"
    } | tail -c 11500
    $ok && exit "$1"
    exit $(($1 == 0 ? 1 : $1))
}
trap 'report $? "NEVER REACHED: the call has ended"' EXIT
trap 'report 143 "NEVER REACHED, or not to its end: the call was ended"' TERM INT HUP

for name in $stages; do
    run_stage "$name"
    if [ "$name" = build ] && [ ! -x "$build/tests/bench/bench_train" ]; then
        report 1 "NEVER REACHED: the build failed"
    fi
done
report 0
