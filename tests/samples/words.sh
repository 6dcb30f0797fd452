# words.sh: few words of five made-up languages, which need no package; sourced.
# shellcheck shell=bash

# words DIRECTORY COUNT: so many words of each language.
words() {
    local language at=0
    mkdir -p "$1"
    for language in american-english french ngerman italian spanish; do
        at=$((at + 1))
        awk -v count="$2" -v seed="$at" 'BEGIN {
            for (i = 0; i < count; i++) {
                word = ""
                for (k = 0; k < 4 + i % 5; k++) {
                    state = (state * 137 + 59 + seed) % 9973
                    word = word substr("abcdefghijklmnopqrstuvwxyz", 1 + (state + seed * k) % (8 + 4 * seed), 1)
                }
                print word sprintf("%c", 97 + i % 8) sprintf("%c", 97 + int(i / 8) % 8)
            }
        }' >"$1/$language"
    done
}
