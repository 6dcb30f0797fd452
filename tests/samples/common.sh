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

# keys JSON KEY...: the file is well-formed and has the keys.
keys() {
    local key
    for key in "${@:2}"; do
        grep -q "\"$key\": " "$1" || wrong "$1: no \"$key\""
    done
    ! command -v python3 >/dev/null || python3 -m json.tool "$1" >/dev/null || wrong "$1 is not well-formed"
}

# page HTML: it is complete and needs no other files.
page() {
    grep -q '</html>' "$1" || wrong "$1 is not complete"
    ! grep -qE 'src=|href="[^#]|url\(|@import' "$1" || wrong "$1 needs other files"
}

# png FILE WIDTH HEIGHT: it begins with the signature and a header of this size.
png() {
    [ "$(od -An -tx1 -N24 "$1" | tr -d ' \n')" = "89504e470d0a1a0a0000000d49484452$(printf %08x%08x "$2" "$3")" ] ||
        wrong "$1 is not a PNG of $2 x $3"
}

# stopped SIGNAL STATUS OPTION...: a signal ends the run after its step, with a checkpoint and how to resume.
stopped() {
    local checkpoint=$work/stopped/checkpoint.safetensors pid
    "$program" "${small[@]}" "${@:3}" --every 1 --out "$work/stopped" >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    for _ in {1..400}; do
        [ ! -s "$checkpoint" ] || break
        sleep 0.05
    done
    kill "-$1" $pid
    wait $pid
    [ $? = "$2" ] || wrong "SIG$1: not status $2"
    grep -qF -- "--resume $checkpoint" "$work/out" || wrong "SIG$1: $(cat "$work/out" "$work/err")"
    rm -r "$work/stopped"
}

finish() {
    [ $failed = 0 ] && echo "well"
    exit $failed
}
