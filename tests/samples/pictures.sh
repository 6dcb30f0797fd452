# pictures.sh: few of Fashion-MNIST's pictures, which a program reads at once; sourced.
# shellcheck shell=bash

# pictures DIRECTORY SET COUNT: so many pictures and labels of the real files. The status is 1 if there aren't so many.
pictures() {
    local length from=${EVENKEEL_FASHION_MNIST:-/usr/share/datasets/fashion-mnist} images=$1/$2-images-idx3-ubyte
    local labels=$1/$2-labels-idx1-ubyte
    length=$(printf '\\%03o\\%03o' $(($3 / 256)) $(($3 % 256)))
    mkdir -p "$1"
    # zcat complains when head has enough.
    # shellcheck disable=SC2059
    { printf "\0\0\10\3\0\0$length\0\0\0\34\0\0\0\34" && zcat "$from/$2-images-idx3-ubyte.gz" 2>/dev/null |
        tail -c +17 | head -c $((784 * $3)); } >"$images"
    # shellcheck disable=SC2059
    { printf "\0\0\10\1\0\0$length" && zcat "$from/$2-labels-idx1-ubyte.gz" 2>/dev/null | tail -c +9 | head -c "$3"; } >"$labels"
    if [ "$(stat -c %s "$images" "$labels" | xargs)" != "$((16 + 784 * $3)) $((8 + $3))" ]; then
        echo "$from has no $3 pictures of $2" >&2
        return 1
    fi
}
