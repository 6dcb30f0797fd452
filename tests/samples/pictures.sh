# pictures.sh: few of Fashion-MNIST's pictures, which a program reads at once; sourced.
# shellcheck shell=bash

# pictures DIRECTORY SET COUNT: so many pictures and labels of the real files.
pictures() {
    local length from=${EVENKEEL_FASHION_MNIST:-/usr/share/datasets/fashion-mnist}
    length=$(printf '\\%03o\\%03o' $(($3 / 256)) $(($3 % 256)))
    mkdir -p "$1"
    # shellcheck disable=SC2059
    { printf "\0\0\10\3\0\0$length\0\0\0\34\0\0\0\34" && zcat "$from/$2-images-idx3-ubyte.gz" | tail -c +17 |
        head -c $((784 * $3)); } >"$1/$2-images-idx3-ubyte"
    # shellcheck disable=SC2059
    { printf "\0\0\10\1\0\0$length" && zcat "$from/$2-labels-idx1-ubyte.gz" | tail -c +9 | head -c "$3"; } \
        >"$1/$2-labels-idx1-ubyte"
}
