# setup.sh: what samples/demo and tests/check share: find what is missing, install it, build.
# Source it with bash; the working directory becomes the project's root.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

fashion_mnist=${EVENKEEL_FASHION_MNIST:-/usr/share/datasets/fashion-mnist}

# What EVENKEEL_CUDA asks for, as options of CMake.
cuda_options=()
[ -z "${EVENKEEL_CUDA-}" ] || cuda_options=("-DEVENKEEL_CUDA=$EVENKEEL_CUDA")

say() { printf '== %s\n' "$*"; }

fail() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

has_header() { echo "#include <$1>" | ${CC:-cc} -E - >/dev/null 2>&1; }

has_compiler() { # $1: compiler, $2: language
    echo 'int main(void) { return 0; }' | "$1" -x "$2" -o /dev/null - 2>/dev/null
}

# Is what a Debian package is needed for here, wherever it came from?
has() {
    case $1 in
    gcc) has_compiler "${CC:-cc}" c ;;
    g++) has_compiler "${CXX:-c++}" c++ ;;
    cmake) command -v cmake ;;
    make) command -v make || command -v ninja ;;
    ninja-build) command -v ninja ;;
    pkg-config) command -v pkg-config ;;
    libdnnl-dev) has_header dnnl.h ;;
    zlib1g-dev) has_header zlib.h ;;
    libpng-dev) has_header png.h ;;
    libturbojpeg0-dev) has_header turbojpeg.h ;;
    check) has_header check.h ;;
    libopenmpi-dev) command -v mpicc.openmpi || command -v mpicc ;;
    openmpi-bin) command -v mpirun.openmpi || command -v mpirun ;;
    ccache) command -v ccache ;;
    doxygen) command -v doxygen ;;
    lintian) command -v lintian ;;
    dpkg-dev) command -v dpkg-shlibdeps ;;
    iproute2) command -v ip || test -x /usr/sbin/ip ;;
    locales) command -v localedef && test -r /usr/share/i18n/locales/tr_TR ;;
    fortunes) test -r /usr/share/games/fortunes/computers ;;
    dataset-fashion-mnist) test -r "$fashion_mnist"/train-images-idx3-ubyte.gz ;;
    wamerican) test -r /usr/share/dict/american-english ;;
    wfrench) test -r /usr/share/dict/french ;;
    wngerman) test -r /usr/share/dict/ngerman ;;
    witalian) test -r /usr/share/dict/italian ;;
    wspanish) test -r /usr/share/dict/spanish ;;
    *) return 1 ;;
    esac >/dev/null
}

purpose() {
    case $1 in
    gcc) echo "the C compiler" ;;
    g++) echo "a C++ compiler, for the test that compiles the headers as C++" ;;
    cmake) echo "the build system" ;;
    make) echo "what CMake drives" ;;
    ninja-build) echo "what CMake drives for hundreds of programs, several times as fast as make" ;;
    pkg-config) echo "how Check is found" ;;
    libdnnl-dev) echo "oneDNN: convolutions and matrix products" ;;
    zlib1g-dev) echo "zlib: reads compressed data sets" ;;
    libpng-dev) echo "libpng: reads and writes pictures" ;;
    libturbojpeg0-dev) echo "TurboJPEG: reads pictures" ;;
    check) echo "Check: the unit tests" ;;
    libopenmpi-dev) echo "Open MPI: what programs of several processes are built with" ;;
    openmpi-bin) echo "mpirun, which starts programs of several processes" ;;
    locales) echo "other languages' locales, for the test that files are the same in all" ;;
    ccache) echo "compiles once what two builds share" ;;
    doxygen) echo "makes the documentation's site, target documentation" ;;
    lintian) echo "looks at the Debian packages that cpack makes" ;;
    iproute2) echo "makes networks between the machines of tests/ranks/hosts" ;;
    dpkg-dev) echo "finds what the Debian packages depend on" ;;
    fortunes) echo "a text for samples/gpt, in /usr/share/games/fortunes" ;;
    dataset-fashion-mnist) echo "the pictures, in $fashion_mnist" ;;
    wamerican | wfrench | wngerman | witalian | wspanish) echo "words of a language, in /usr/share/dict" ;;
    esac
}

somebody_types=false
[ -t 0 ] && somebody_types=true

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif $somebody_types; then
        sudo "$@"
    else
        sudo -n "$@" # nobody is there to type a password
    fi
}

# apt_get ARGUMENT...: waits while another program holds one of apt's locks (of package lists, of downloads, dpkg's;
# apt's own DPkg::Lock::Timeout is for dpkg's only), for lock_patience seconds at most.
lock_patience=300
lock_pause=5
apt_get() {
    local log waited=0 status
    log=$(mktemp) || fail "no temporary file can be made"
    while :; do
        {
            as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" </dev/null 2>&1 >&3 |
                tee "$log" >&2
        } 3>&1
        status=${PIPESTATUS[0]}
        if [ "$status" = 0 ] || ! grep -qE 'Could not get lock|Unable to (lock|acquire)' "$log"; then
            break
        fi
        if [ $waited -ge $lock_patience ]; then
            say "Another program has held apt's lock for $waited seconds"
            break
        fi
        say "Waiting for another program that holds apt's lock, up to $((lock_patience - waited)) seconds more"
        sleep $lock_pause
        waited=$((waited + (lock_pause > 0 ? lock_pause : 1)))
    done
    rm -f "$log"
    return "$status"
}

# Installs those of the named packages that are missing, or says what is missing and ends.
need() {
    local package missing=() packages=()
    for package in "$@"; do
        has "$package" || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return

    say "Missing:"
    for package in "${missing[@]}"; do
        printf '     %-22s %s\n' "$package" "$(purpose "$package")"
        packages+=("$package")
        case $package in # headers of the C and C++ library are recommended, not required, by gcc
        gcc) packages+=(libc6-dev) ;;
        esac
    done
    local how="On Debian, as root: apt-get install ${packages[*]}"
    command -v apt-get >/dev/null ||
        fail "cannot install them: there is no apt-get here. $how. Elsewhere, install what these provide."
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail "cannot install them: you are not root and there is no sudo. $how"

    say "Installing: apt-get install ${packages[*]}"
    apt_get update || say "apt-get update failed; trying with the package lists that are here"
    apt_get --no-install-recommends install "${packages[@]}" ||
        fail "apt-get could not install them (see above). $how"
    for package in "${missing[@]}"; do
        has "$package" || fail "$package is installed but what it is for was not found: $(purpose "$package")"
    done
}

jobs_at_once() { nproc 2>/dev/null || echo 2; }

# configure DIR OPTION...: unless DIR is configured with these options already.
configure() {
    local dir=$1
    shift
    if [ -f "$dir/CMakeCache.txt" ] && { [ -f "$dir/Makefile" ] || [ -f "$dir/build.ninja" ]; } &&
        [ "$(cat "$dir/configured-with" 2>/dev/null)" = "$*" ]; then
        return
    fi
    command -v make >/dev/null || export CMAKE_GENERATOR=Ninja
    say "Configuring: cmake -S . -B $dir $*"
    cmake -S . -B "$dir" "$@" || fail "the configuration failed; what is missing stands above"
    echo "$*" >"$dir/configured-with"
}
