/* test_python_random.c: Python's and NumPy's numbers, and what ek_set_seed seeds. */
#include "core/python_random.h"
#include "unit.h"

enum { SHUFFLED = 60 };
static const char file[] = "python_random.golden";

static const int64_t *integers(const char *name, int64_t *count)
{
    ek_tensor *tensor = golden(file, name);
    ck_assert_int_eq(ek_tensor_dtype(tensor), EK_I64);
    *count = ek_tensor_count(tensor);
    return ek_tensor_data(tensor);
}

static void assert_shuffle(ek_generator *generator, const int64_t *expected)
{
    int64_t values[SHUFFLED];
    for (int i = 0; i < SHUFFLED; i++)
        values[i] = i;
    ek_python_shuffle(generator, values, SHUFFLED, sizeof values[0]);
    ck_assert_mem_eq(values, expected, sizeof values);
}

/* For the process' generator and for one of the caller's. */
TEST_LOOP(python_numbers, 0, 2)
{
    int64_t seeds, bounds, count;
    const int64_t *seed = integers("seeds", &seeds), *bound = integers("bounds", &bounds);
    const int64_t *shuffled = integers("shuffle", &count), *below = integers("below", &count);
    int64_t draws = count / seeds;
    ek_generator *own = _i ? ek_generator_new(7) : NULL;
    ck_assert_int_eq(draws % bounds, 0);
    for (int64_t s = 0; s < seeds; s++) {
        ek_python_seed(own, seed[s]);
        assert_shuffle(own, shuffled + s * SHUFFLED);
        for (int64_t d = 0; d < draws; d++)
            ck_assert_int_eq(ek_python_below(own, bound[d % bounds]), below[s * draws + d]);
    }
    ek_generator_free(own);
}

TEST_LOOP(numpy_numbers, 0, 2)
{
    int64_t seeds, bounds, count;
    const int64_t *seed = integers("numpy_seeds", &seeds), *bound = integers("bounds", &bounds);
    const int64_t *below = integers("numpy_below", &count);
    int64_t draws = count / seeds;
    ek_generator *own = _i ? ek_generator_new(7) : NULL;
    for (int64_t s = 0; s < seeds; s++) {
        ek_numpy_seed(own, (uint32_t)seed[s]);
        for (int64_t d = 0; d < draws; d++)
            ck_assert_int_eq(ek_numpy_below(own, bound[d % bounds]), below[s * draws + d]);
    }
    ek_generator_free(own);
}

/* Elements of any size move whole; none and one are left alone and draw nothing. */
TEST(shuffles_move_elements)
{
    static const uint8_t published[10] = {7, 8, 1, 5, 3, 4, 2, 0, 9, 6}; /* seed 0 */
    uint8_t bytes[10], wide[10][3];
    for (uint8_t i = 0; i < 10; i++) {
        bytes[i] = i;
        memset(wide[i], i, sizeof wide[i]);
    }
    ek_python_seed(NULL, 0);
    ek_python_shuffle(NULL, NULL, 0, 8);
    ek_python_shuffle(NULL, bytes, 1, 1);
    ek_python_shuffle(NULL, bytes, 10, 1);
    ck_assert_mem_eq(bytes, published, sizeof bytes);
    ek_python_seed(NULL, 0);
    ek_python_shuffle(NULL, wide, 10, sizeof wide[0]);
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < 3; k++)
            ck_assert_int_eq(wide[i][k], published[i]);
}

/* Nobody seeded: as after seed 0. */
TEST(unseeded_generators)
{
    int64_t python = ek_python_below(NULL, INT64_MAX), numpy = ek_numpy_below(NULL, INT64_MAX);
    ek_python_seed(NULL, 0);
    ek_numpy_seed(NULL, 0);
    ck_assert_int_eq(ek_python_below(NULL, INT64_MAX), python);
    ck_assert_int_eq(ek_numpy_below(NULL, INT64_MAX), numpy);
    ck_assert_ptr_eq(ek_python_generator(), ek_python_generator());
    ck_assert_ptr_ne(ek_python_generator(), ek_numpy_generator());
}

static void draw_three(uint64_t drawn[3])
{
    drawn[0] = ek_random_u64(NULL);
    drawn[1] = (uint64_t)ek_python_below(NULL, INT64_MAX);
    drawn[2] = (uint64_t)ek_numpy_below(NULL, INT64_MAX);
}

TEST(set_seed)
{
    uint64_t plain[3], first[3], again[3], next[3];
    ck_assert(!ek_deterministic());
    ek_manual_seed(5);
    ek_python_seed(NULL, 5);
    ek_numpy_seed(NULL, 5);
    draw_three(plain);
    draw_three(next);
    ck_assert(!ek_deterministic());

    ek_set_seed(5);
    ck_assert(ek_deterministic());
    draw_three(first);
    ck_assert_mem_eq(first, plain, sizeof plain);
    ek_use_deterministic_algorithms(false);
    ek_set_seed(EK_NO_SEED); /* goes on */
    ck_assert(!ek_deterministic());
    draw_three(again);
    ck_assert_mem_eq(again, next, sizeof next);

    /* Any whole number seeds: NumPy takes its lower half, Python its absolute value. */
    ek_set_seed(-3);
    draw_three(first);
    ek_manual_seed((uint64_t)-3);
    ek_python_seed(NULL, 3);
    ek_numpy_seed(NULL, UINT32_MAX - 2);
    draw_three(again);
    ck_assert_mem_eq(again, first, sizeof first);
}
