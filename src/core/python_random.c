/* python_random.c: draws the numbers of CPython's `random` (seeded as by init_by_array of Matsumoto
 * and Nishimura, 2002) and of NumPy's RandomState from Mersenne Twisters of generator.h. */
#include "core/python_random.h"

enum { PYTHON, NUMPY, OWNERS };

/* The process's two generators. Each is seeded with 0 when it is first used; until then its `left`
 * is 0. */
static ek_generator own[OWNERS];

ek_generator *ek_python_generator(void)
{
    if (own[PYTHON].left == 0)
        ek_python_seed(&own[PYTHON], 0);
    return &own[PYTHON];
}

ek_generator *ek_numpy_generator(void)
{
    if (own[NUMPY].left == 0)
        ek_numpy_seed(&own[NUMPY], 0);
    return &own[NUMPY];
}

void ek_python_seed(ek_generator *generator, int64_t seed)
{
    enum { FIRST_SEED = 19650218 };
    uint64_t magnitude = seed < 0 ? 0 - (uint64_t)seed : (uint64_t)seed;
    const uint32_t key[2] = {(uint32_t)magnitude, (uint32_t)(magnitude >> 32)};
    uint32_t words = key[1] ? 2 : 1, i = 1;

    generator = generator ? generator : &own[PYTHON];
    ek_generator_seed(generator, FIRST_SEED);
    uint32_t *state = generator->state;
    for (uint32_t k = 0; k < EK_TWISTER_WORDS; k++) {
        uint32_t mixed = (state[i - 1] ^ (state[i - 1] >> 30)) * 1664525u;
        state[i] = (state[i] ^ mixed) + key[k % words] + k % words;
        if (++i == EK_TWISTER_WORDS) {
            state[0] = state[EK_TWISTER_WORDS - 1];
            i = 1;
        }
    }
    for (uint32_t k = 1; k < EK_TWISTER_WORDS; k++) {
        uint32_t mixed = (state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941u;
        state[i] = (state[i] ^ mixed) - i;
        if (++i == EK_TWISTER_WORDS) {
            state[0] = state[EK_TWISTER_WORDS - 1];
            i = 1;
        }
    }
    state[0] = 0x80000000u;
    generator->seed = (uint64_t)seed;
}

static int python_bit_length(uint64_t value)
{
    int bits = 0;
    for (; value; value >>= 1)
        bits++;
    return bits;
}

/* Draws what random.getrandbits draws: the lowest word comes first, and the last word gives its
 * upper bits. */
static uint64_t python_draw_bits(ek_generator *generator, int bits)
{
    uint64_t low = ek_generator_u32(generator);
    if (bits <= 32)
        return low >> (32 - bits);
    return low | (uint64_t)(ek_generator_u32(generator) >> (64 - bits)) << 32;
}

int64_t ek_python_below(ek_generator *generator, int64_t below)
{
    int bits = python_bit_length((uint64_t)below);
    uint64_t value;
    generator = generator ? generator : ek_python_generator();
    do
        value = python_draw_bits(generator, bits);
    while (value >= (uint64_t)below);
    return (int64_t)value;
}

void ek_python_shuffle(ek_generator *generator, void *elements, int64_t count, size_t size)
{
    char *bytes = elements;
    for (int64_t i = count - 1; i > 0; i--) {
        char *a = bytes + (size_t)i * size;
        char *b = bytes + (size_t)ek_python_below(generator, i + 1) * size;
        for (size_t k = 0; k < size; k++) {
            char kept = a[k];
            a[k] = b[k];
            b[k] = kept;
        }
    }
}

void ek_numpy_seed(ek_generator *generator, uint32_t seed)
{
    ek_generator_seed(generator ? generator : &own[NUMPY], seed);
}

int64_t ek_numpy_below(ek_generator *generator, int64_t below)
{
    uint64_t most = (uint64_t)below - 1, value;
    generator = generator ? generator : ek_numpy_generator();
    if (most == 0)
        return 0;
    int bits = python_bit_length(most);
    uint64_t mask = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    do
        value =
            (most <= UINT32_MAX ? ek_generator_u32(generator) : ek_generator_u64(generator)) & mask;
    while (value > most);
    return (int64_t)value;
}
