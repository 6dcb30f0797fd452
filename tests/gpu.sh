#!/bin/bash
# Everything that needs a GPU, in one call of under ten minutes and without a network.
#
#   tests/gpu.sh --fetch DIR      on a machine with Debian's packages: downloads into DIR what the build needs
#   tests/gpu.sh [DIR]            on a machine with the CUDA toolkit, CMake, a compiler and a GPU: unpacks DIR's
#                                 packages under build-gpu/, builds there, and runs
#
#   1. the whole suite on one logical device and on four on one GPU,
#   2. each kernel against the host's (part of the suite), and the samples against themselves on the host,
#   3. compute-sanitizer's memcheck and racecheck over the kernels' tests,
#   4. the demo and the GAN sample,
#   5. the benchmark beside its PyTorch twin, and copies between logical devices.
#
# Ends with one line for each; the exit status says whether all went well. Logs and figures are left in $OUT, or in
# build-gpu/out. LIMIT (540) bounds the seconds in all: what doesn't fit is named as not run, which is a failure.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

packages=(libdnnl-dev libdnnl2 zlib1g-dev zlib1g libjansson-dev libjansson4 libpng-dev libpng16-16 libturbojpeg0-dev libturbojpeg0 check libsubunit-dev
    libsubunit0 pkgconf pkgconf-bin libpkgconf3
    ocl-icd-libopencl1 dataset-fashion-mnist)

fail() {
    echo "$0: $*" >&2
    exit 1
}

fetch() {
    mkdir -p "$1" || fail "cannot write to $1"
    cd "$1" || exit 1
    apt-get download "${packages[@]}" || fail "apt-get download failed (apt-get update first?)"
}

if [ "${1-}" = --fetch ]; then
    [ $# = 2 ] || fail "usage: $0 --fetch DIR"
    fetch "$2"
    exit
fi
[ $# -le 1 ] || fail "usage: $0 [DIR]"

build=$PWD/build-gpu
out=${OUT:-$build/out}
root=$build/root
limit=${LIMIT:-540}
mkdir -p "$out" "$root"

command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || fail "there is no nvcc on PATH or in /usr/local/cuda/bin"
nvidia-smi -L >"$out/gpus.txt" 2>&1 || fail "nvidia-smi finds no GPU: $(cat "$out/gpus.txt")"

if [ $# = 1 ]; then
    for package in "$1"/*.deb; do
        dpkg -x "$package" "$root" || fail "cannot unpack $package"
    done
    libraries=$root/usr/lib/x86_64-linux-gnu
    export CMAKE_PREFIX_PATH=$root/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
    export CPATH=$root/usr/include:$root/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}
    export PKG_CONFIG_PATH=$libraries/pkgconfig
    export PKG_CONFIG_SYSROOT_DIR=$root
    # pkg-config may be missing here: the packages' own.
    command -v pkg-config >/dev/null || export PATH=$root/usr/bin:$PATH
    data=$root/usr/share/datasets/fashion-mnist
fi
data=${data:-/usr/share/datasets/fashion-mnist}

# ---- stages ----

declare -a summary
ok=true

left() { echo $((limit - SECONDS)); }

# stage NAME SECONDS COMMAND...: within its seconds and what is left of all.
stage() {
    local name=$1 seconds=$2 log=$out/${1// /-}.log begin=$SECONDS rc
    shift 2
    [ "$seconds" -lt "$(left)" ] || seconds=$(left)
    if [ "$seconds" -lt 5 ]; then
        summary+=("$(printf '%-28s not run: no time is left' "$name")")
        ok=false
        return 1
    fi
    timeout "$seconds" "$@" >"$log" 2>&1
    rc=$?
    if [ $rc = 0 ]; then
        summary+=("$(printf '%-28s well     %4d s' "$name" $((SECONDS - begin)))")
    else
        ok=false
        summary+=("$(printf '%-28s FAILED   %4d s  %s' "$name" $((SECONDS - begin)) \
            "$([ $rc = 124 ] && echo "ran past $seconds s" || echo "exit $rc"); see $log")")
        tail -n 25 "$log"
    fi
    return $rc
}

configure_and_build() {
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DEVENKEEL_TESTS=ON -DEVENKEEL_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-native}" &&
        cmake --build "$build" -j "$(nproc)"
}

suite() { # logical devices: the accelerators of the tests are GPUs
    EVENKEEL_TEST_FULL=1 EVENKEEL_TEST_DEVICES=cuda EVENKEEL_CUDA_DEVICES=$1 ctest --test-dir "$build" --output-on-failure \
        -j "$(($(nproc) / 2))" -LE 'bench|install' --timeout 120
}

# Kernels against the host's, each program under the tool; it slows them ten to fifty times.
sanitize() { # tool
    local test rc=0
    for test in "$build"/tests/test_cuda_*; do
        [ -x "$test" ] || continue
        CK_FORK=no CK_DEFAULT_TIMEOUT=0 EVENKEEL_TEST_DEVICES=cuda EVENKEEL_TEST_SHORT=1 \
            timeout 60 compute-sanitizer --tool "$1" --error-exitcode 99 --launch-timeout 0 "$test"
        case $? in
        0 | 77 | 124) ;; # 124: what was seen by then is clean
        *)
            echo "$1: $test failed"
            rc=1
            ;;
        esac
    done
    return $rc
}

demo() {
    "$build/samples/imbalance" --device cuda --devices 4 --data "$data" --json "$out/imbalance.json" \
        --html "$out/imbalance.html"
}

gan() {
    mkdir -p "$out/gan" && "$build/samples/gan" --device cuda --devices 2 --steps 100 --data "$data" \
        --out "$out/gan" --json "$out/gan.json"
}

# One round: times on a GPU that nobody else uses vary little, and Python starts once for each row.
bench() {
    DEVICE=cuda BUILD=$build PYTHON=${PYTHON:-python3} ROUNDS=1 SECONDS_EACH=2 tests/bench/run \
        resnet18@256 resnet18-bf16@256 segmentation mlp critic critic-layer
}

copies() { "$build/tests/bench/bench_copies" 4 100; }

stage build 300 configure_and_build
if [ -x "$build/samples/imbalance" ]; then
    stage "suite on one device" 120 suite 0
    stage "suite on four devices" 120 suite 0,0,0,0
    stage "demo" 60 demo
    stage "copies" 30 copies
    stage "bench" 150 bench
    stage "gan" 60 gan
    stage "memcheck" 120 sanitize memcheck
    stage "racecheck" 120 sanitize racecheck
fi

echo
cat "$out/gpus.txt"
for log in copies bench; do
    [ -s "$out/$log.log" ] && cat "$out/$log.log"
done
printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"
$ok
