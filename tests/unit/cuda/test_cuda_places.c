/* Divisions by what is known before a launch. */
#include "cuda/view.h"
#include "unit.h"

static uint64_t random_bits(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Numbers of any size below 2^bits. */
static uint64_t random_number(uint64_t *state, int bits)
{
    int shift = 64 - bits + (int)(random_bits(state) % (uint64_t)bits);
    return random_bits(state) >> shift;
}

TEST_LOOP(division_is_exact, 0, 2)
{
    const int bits = _i == 0 ? 31 : 63;
    uint64_t state = 88172645463325252u;
    for (int k = 0; k < 20000; k++) {
        uint64_t by = random_number(&state, bits), most = ((uint64_t)1 << bits) - 1;
        by = by > 0 ? by : 1;
        ek_cuda_long_divisor wide = ek_cuda_long_divisor_of(by);
        ek_cuda_divisor narrow = {0, 0, 0};
        if (bits == 31)
            narrow = ek_cuda_divisor_of((uint32_t)by);
        /* Any, the largest, and around a multiple. */
        uint64_t near = random_number(&state, bits) / by * by;
        uint64_t numbers[] = {random_number(&state, bits), most,  most / by * by, near,
                              near > 0 ? near - 1 : 0,     by - 1};
        for (size_t j = 0; j < sizeof numbers / sizeof *numbers; j++) {
            uint64_t n = numbers[j];
            ck_assert_uint_eq(ek_cuda_divide_long(wide, n), n / by);
            if (bits == 31)
                ck_assert_uint_eq(ek_cuda_divide(narrow, (uint32_t)n), n / by);
        }
    }
}
