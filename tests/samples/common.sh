# common.sh PROGRAM WORK: what the scripts of the samples share; sourced, with the script's arguments.
# shellcheck shell=bash disable=SC2034
set -u
program=$1
work=$2/$(basename "$0")-run
small=(--device host) # options of every run
results=()            # options that name files, which a run that is refused does not write
failed=0
unset EVENKEEL_HOST_DEVICES
rm -rf "$work"
mkdir -p "$work"

wrong() {
    echo "FAILED: $*" >&2
    failed=1
}

# refused PART OPTION...: status 2, a sentence with PART on standard error, nothing else.
refused() {
    local part=$1 status
    shift
    timeout -s KILL 120 "$program" "${small[@]}" "${results[@]}" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    [ $status = 2 ] || wrong "$*: status $status instead of 2"
    grep -qF -- "$part" "$work/err" || wrong "$*: no \"$part\" in: $(cat "$work/err")"
    [ ! -s "$work/out" ] || wrong "$*: standard output: $(cat "$work/out")"
    ! ls "$work"/refused.* >/dev/null 2>&1 || wrong "$*: a file was written"
}

# run NAME OPTION...: trains into $work/NAME and $work/NAME.json.
run() {
    local name=$1
    shift
    "$program" "${small[@]}" --out "$work/$name" --json "$work/$name.json" "$@" >"$work/$name.log" \
        2>"$work/err" </dev/null || wrong "$name: $(cat "$work/err")"
}

# hashes JSON: of parameters.
hashes() { grep -oE '"parameters_sha256": "[0-9a-f]{64}"' "$1"; }

finish() {
    [ $failed = 0 ] && echo "well"
    exit $failed
}
