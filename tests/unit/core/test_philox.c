/* test_philox.c: Philox's words are the published ones, and tensors get the numbers that the header
 * says, whichever way they are cut. */
#include "core/draw.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "unit.h"

static void begin(void)
{
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_manual_seed(5);
}

FIXTURE(begin, NULL)

/* Random123's kat_vectors. */
TEST(published_vectors)
{
    static const struct {
        uint64_t low, high, key;
        uint32_t words[EK_PHILOX_BLOCK];
    } vectors[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int v = 0; v < 3; v++) {
        uint32_t words[EK_PHILOX_BLOCK];
        ek_philox_words_of(vectors[v].key, vectors[v].high, vectors[v].low, words);
        ck_assert_mem_eq(words, vectors[v].words, sizeof words);
        ek_philox_plain_blocks(vectors[v].key, vectors[v].high, vectors[v].low, 1, words);
        ck_assert_mem_eq(words, vectors[v].words, sizeof words);
    }
}

static uint32_t word_of(uint64_t seed, uint64_t call, uint64_t number)
{
    uint32_t words[EK_PHILOX_BLOCK];
    ek_philox_words_of(seed, call, number / EK_PHILOX_BLOCK, words);
    return words[number % EK_PHILOX_BLOCK];
}

/* Element i has word i of its call, and calls are counted from the seed on. */
TEST(numbers_follow_from_seed_call_and_place)
{
    ek_tensor *x = ek_empty(EK_SHAPE(3, 7)), *wide = ek_empty(EK_SHAPE(9), EK_F64);
    ek_manual_seed(77);
    assert_made(ek_rand(EK_SHAPE(100)));
    assert_ok(ek_uniform_(x, 0, 1, NULL));
    assert_ok(ek_uniform_(wide, 0, 1, NULL));
    for (unsigned i = 0; i < 21; i++)
        ck_assert(element(x, i) == (word_of(77, 1, i) >> 8) * 0x1p-24);
    for (unsigned i = 0; i < 9; i++) {
        uint64_t bits = (uint64_t)word_of(77, 2, 2 * i) << 32 | word_of(77, 2, 2 * i + 1);
        ck_assert(element(wide, i) == (double)(bits >> 11) * 0x1p-53);
    }
    ek_tensor *none = ek_empty(EK_SHAPE(0)), *mask = ek_empty(EK_SHAPE(50), EK_U8);
    assert_ok(ek_uniform_(none, 0, 1, NULL));
    assert_ok(ek_bernoulli_(mask, 0.25, NULL));
    for (unsigned i = 0; i < 50; i++)
        ck_assert(element(mask, i) == (word_of(77, 4, i) < 0x40000000u));
    ek_tensor *digits = ek_randint(-3, 7, EK_SHAPE(50));
    for (unsigned i = 0; i < 50; i++)
        ck_assert(element(digits, i) == (double)((uint64_t)word_of(77, 5, i) * 10 >> 32) - 3);
}

/* Normal numbers against the C library's functions, in f64. */
TEST(normals_are_box_and_mullers)
{
    ek_tensor *x = ek_empty(EK_SHAPE(10000)), *wide = ek_empty(EK_SHAPE(10000), EK_F64);
    const double turn = 6.283185307179586476925;
    assert_ok(ek_normal_(x, 0.5, 2, NULL));
    assert_ok(ek_normal_(wide, 0.5, 2, NULL));
    for (unsigned i = 0; i < 10000; i += 2) {
        double u = (word_of(5, 0, i) + 0.5) * 0x1p-32, v = word_of(5, 0, i + 1) * 0x1p-32;
        double radius = 2 * sqrt(-2 * log(u));
        for (unsigned j = 0; j < 2; j++) {
            double wanted = 0.5 + radius * (j ? sin(turn * v) : cos(turn * v));
            ck_assert_msg(fabs(element(x, i + j) - wanted) <= 4e-6 * (1 + fabs(wanted)),
                          "f32 element %u: %.9g instead of %.9g", i + j, element(x, i + j), wanted);
        }
        uint64_t bits[2];
        for (unsigned j = 0; j < 2; j++)
            bits[j] =
                (uint64_t)word_of(5, 1, 2 * i + 2 * j) << 32 | word_of(5, 1, 2 * i + 2 * j + 1);
        long double angle = 6.283185307179586476925286766559L * ((long double)bits[1] * 0x1p-64L);
        long double length = 2 * sqrtl(-2 * logl(((long double)bits[0] + 0.5L) * 0x1p-64L));
        for (unsigned j = 0; j < 2; j++) {
            double wanted = (double)(0.5L + length * (j ? sinl(angle) : cosl(angle)));
            ck_assert_msg(fabs(element(wide, i + j) - wanted) <= 1e-14 * (1 + fabs(wanted)),
                          "f64 element %u: %.17g instead of %.17g", i + j, element(wide, i + j),
                          wanted);
        }
    }
}

/* The ends of the range: words of zeros and of ones. */
TEST(normals_are_finite)
{
    static const uint32_t ends[] = {0,          1,          0x1fffffff, 0x20000000,
                                    0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000,
                                    0xe0000000, 0xfffffffe, 0xffffffff};
    enum { ENDS = sizeof ends / sizeof *ends };
    for (int a = 0; a < ENDS; a++)
        for (int b = 0; b < ENDS; b++) {
            float pair[2];
            double wide[2];
            ek_philox_normals_f32((uint32_t[]){ends[a], ends[b]}, 0, 1, pair);
            ek_philox_normals_f64((uint32_t[]){ends[a], ends[a], ends[b], ends[b]}, 0, 1, wide);
            for (int j = 0; j < 2; j++)
                ck_assert(fabsf(pair[j]) < 7 && fabs(wide[j]) < 10);
        }
    float pair[2];
    ek_philox_normals_f32((uint32_t[]){0, 0}, 0, 1, pair);
    ck_assert(fabsf(pair[0] - 6.7637f) < 1e-3f && pair[1] == 0);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* D sqrt(n) of Kolmogorov and Smirnov; 1.95 is exceeded by one of a thousand perfect generators. */
static double unevenness(const ek_tensor *x, bool normal)
{
    int64_t count = ek_tensor_count(x);
    double *values = malloc((size_t)count * sizeof *values), largest = 0;
    ck_assert_ptr_nonnull(values);
    if (ek_tensor_dtype(x) == EK_F64)
        assert_ok(ek_to_data(x, values, (size_t)count * 8));
    else
        for (int64_t i = 0; i < count; i++)
            values[i] = (double)((const float *)ek_tensor_data(x))[i];
    qsort(values, (size_t)count, sizeof *values, compare);
    for (int64_t i = 0; i < count; i++) {
        double p = normal ? 0.5 * erfc(-values[i] / sqrt(2)) : values[i];
        largest = fmax(largest, (double)(i + 1) / (double)count - p);
        largest = fmax(largest, p - (double)i / (double)count);
    }
    free(values);
    return largest * sqrt((double)count);
}

/* 0: uniforms, 1: normals; in f32, then in f64. */
TEST_LOOP(numbers_are_even, 0, 2)
{
    for (int t = 0; t < 2; t++) {
        ek_tensor *x = ek_empty(EK_SHAPE(1000000), t ? EK_F64 : EK_F32);
        assert_ok(_i ? ek_normal_(x, 0, 1, NULL) : ek_uniform_(x, 0, 1, NULL));
        double d = unevenness(x, _i);
        ck_assert_msg(d > 0.2 && d < 1.95, "D sqrt(n) is %g", d);
    }
}

/* Neighbours, calls and seeds have nothing to do with each other. */
TEST(numbers_are_uncorrelated)
{
    enum { COUNT = 1 << 18 };
    ek_manual_seed(1);
    ek_tensor *x = ek_randn(EK_SHAPE(COUNT)), *y = ek_randn(EK_SHAPE(COUNT));
    ek_manual_seed(2);
    ek_tensor *z = ek_randn(EK_SHAPE(COUNT));
    const float *a = ek_tensor_data(x), *b = ek_tensor_data(y), *c = ek_tensor_data(z);
    double with_next = 0, with_second = 0, with_call = 0, with_seed = 0, squares = 0;
    for (int i = 0; i < COUNT - 2; i++) {
        with_next += (double)a[i] * (double)a[i + 1];
        with_second += (double)a[i] * (double)a[i + 2];
        with_call += (double)a[i] * (double)b[i];
        with_seed += (double)a[i] * (double)c[i];
        squares += (double)a[i] * (double)a[i];
    }
    const double most = 4 * sqrt(COUNT); /* four deviations */
    ck_assert(fabs(with_next) < most && fabs(with_second) < most);
    ck_assert(fabs(with_call) < most && fabs(with_seed) < most);
    ck_assert(fabs(squares - COUNT) < most * sqrt(2));
}

/* Every kind, dtype, start and row: the whole at once is what single elements are. */
TEST_LOOP(cuts_do_not_matter, 0, EK_DTYPES)
{
    enum { COUNT = 3000 };
    static const ek_draw draws[] = {
        {EK_DRAW_UNIFORM, 3, 9, 0, COUNT, 0, -1, 2, 0, 0},
        {EK_DRAW_NORMAL, 3, 9, 5, COUNT, 0, 1, 2, 0, 0},
        {EK_DRAW_NORMAL, 3, 9, 7, 10, 33, 1, 2, 0, 0},
        {EK_DRAW_UNIFORM, 3, 9, 1ll << 40, 1, 6, -1, 2, 0, 0},
        {EK_DRAW_DROPOUT, 3, 9, 11, 25, 25, 0.75, 4 / 3.0, 0, 0},
        {EK_DRAW_BERNOULLI, 3, 9, 3, 50, 1, 0.75, 0, 0, 0},
        {EK_DRAW_INTEGERS, 3, 9, 2, 7, 7, 0, 0, 3, 200},
        {EK_DRAW_INTEGERS, 3, 9, 2, 7, 7, 0, 0, 0, (1ull << 40) + 7},
    };
    static unsigned char x[COUNT * 8], whole[COUNT * 8], single[COUNT * 8];
    const ek_dtype dtype = (ek_dtype)_i;
    const size_t size = ek_dtype_size(dtype);
    for (size_t i = 0; i < COUNT * size; i++)
        x[i] = (unsigned char)(i % 61);
    for (size_t d = 0; d < sizeof draws / sizeof *draws; d++) {
        const ek_draw *draw = &draws[d];
        if (!ek_dtype_is_floating(dtype) &&
            (draw->kind < EK_DRAW_INTEGERS || draw->kind == EK_DRAW_DROPOUT))
            continue;
        const ek_drawn_rows rows = {.out = whole, .x = x, .dtype = dtype, .x_dtype = dtype};
        ek_draw_fill(draw, ek_philox_plain_blocks, &rows, 0, COUNT);
        for (int64_t i = 0; i < COUNT; i++) {
            ek_draw one = *draw;
            one.first += i + i / draw->row * draw->gap;
            one.row = 1;
            const ek_drawn_rows row = {.out = single + (size_t)i * size,
                                       .x = x + (size_t)i * size,
                                       .dtype = dtype,
                                       .x_dtype = dtype};
            ek_draw_fill(&one, ek_philox_plain_blocks, &row, 0, 1);
        }
        ck_assert_msg(memcmp(whole, single, COUNT * size) == 0, "case %zu", d);
    }
}

/* Whatever the order of memory, element i in row-major order is the same. */
TEST(layouts_do_not_matter)
{
    ek_tensor *rows = ek_empty(EK_SHAPE(3, 4, 2, 5));
    ek_tensor *last = ek_empty(EK_SHAPE(3, 4, 2, 5), .format = EK_CHANNELS_LAST);
    ek_tensor *turned = ek_tensor_view(ek_empty(EK_SHAPE(120)), 4, (int64_t[]){3, 4, 2, 5},
                                       (int64_t[]){1, 3, 12, 24}, 0);
    ek_tensor *all[] = {rows, last, turned};
    for (int i = 0; i < 3; i++) {
        uint64_t version = ek_tensor_version(all[i]);
        ek_manual_seed(3);
        assert_ok(ek_normal_(all[i], 0, 1, NULL));
        assert_close(all[i], rows, 0, 0);
        ck_assert_uint_gt(ek_tensor_version(all[i]), version);
    }
}

/* Words that are drawn one by one leave the tensors' numbers alone, and the other way round. */
TEST(single_words_are_apart)
{
    uint32_t first[10];
    ek_manual_seed(8);
    for (int i = 0; i < 10; i++)
        first[i] = ek_random_u32(NULL);
    ck_assert_uint_eq(first[6], word_of(8, UINT64_MAX, 6));
    ek_tensor *after = ek_rand(EK_SHAPE(5));
    ek_manual_seed(8);
    assert_close(ek_rand(EK_SHAPE(5)), after, 0, 0);
    ck_assert_uint_eq(ek_random_u64(NULL), (uint64_t)first[0] << 32 | first[1]);
    for (int i = 2; i < 10; i++)
        ck_assert_uint_eq(ek_random_u32(NULL), first[i]);
    int64_t order[50], seen[50] = {0};
    assert_ok(ek_randperm(50, order, NULL));
    for (int i = 0; i < 50; i++)
        seen[order[i]]++;
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(seen[i], 1);
}

/* A state goes to any generator, whatever its engine was. */
TEST(states_go_on)
{
    uint8_t counted[EK_GENERATOR_STATE_BYTES], twisted[EK_GENERATOR_STATE_BYTES];
    ek_generator *other = ek_generator_new(1);
    assert_made(ek_rand(EK_SHAPE(5)));
    ek_random_u32(NULL);
    assert_ok(ek_generator_get_state(NULL, counted, sizeof counted));
    assert_ok(ek_generator_get_state(other, twisted, sizeof twisted));
    ek_tensor *next = ek_rand(EK_SHAPE(5)), *same = ek_empty(EK_SHAPE(5));
    uint64_t word = ek_random_u64(NULL);
    ck_assert_int_eq(ek_generator_engine(other), EK_RANDOM_TWISTER);
    assert_ok(ek_generator_set_state(other, counted, sizeof counted));
    ck_assert_int_eq(ek_generator_engine(other), EK_RANDOM_PHILOX);
    assert_ok(ek_uniform_(same, 0, 1, other));
    assert_close(same, next, 0, 0);
    ck_assert_uint_eq(ek_random_u64(other), word);
    assert_ok(ek_generator_set_state(NULL, twisted, sizeof twisted));
    ck_assert_int_eq(ek_generator_engine(NULL), EK_RANDOM_TWISTER);
    ek_generator_seed(other, 1);
    assert_ok(ek_generator_set_engine(other, EK_RANDOM_TWISTER));
    ck_assert_uint_eq(ek_random_u64(NULL), ek_random_u64(other));
    uint8_t broken[EK_GENERATOR_STATE_BYTES];
    memcpy(broken, counted, sizeof broken);
    broken[24] = 9; /* the first word: the engine */
    assert_refused(ek_generator_set_state(other, broken, sizeof broken), EK_E_FORMAT,
                   "not a generator's state");
    ek_generator_free(other);
}

/* An engine begins anew from the seed, and seeds keep it. */
TEST(engines_change)
{
    ek_generator *generator = ek_generator_new(4);
    ek_tensor *x = ek_empty(EK_SHAPE(100)), *y = ek_empty(EK_SHAPE(100));
    ck_assert_int_eq(ek_generator_engine(NULL), EK_RANDOM_PHILOX);
    ek_manual_seed(4);
    ck_assert_int_eq(ek_generator_engine(NULL), EK_RANDOM_PHILOX);
    assert_ok(ek_generator_set_engine(generator, EK_RANDOM_PHILOX));
    assert_ok(ek_normal_(x, 0, 1, generator));
    assert_close(ek_randn(EK_SHAPE(100)), x, 0, 0);
    assert_ok(ek_generator_set_engine(generator, EK_RANDOM_PHILOX));
    assert_ok(ek_normal_(y, 0, 1, generator));
    assert_close(x, y, 0, 0);
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_TWISTER));
    ck_assert_uint_eq(ek_random_u32(NULL), 4153361530u);
    assert_refused(ek_generator_set_engine(NULL, (ek_random_engine)2), EK_E_INVALID,
                   "2 is no engine");
    ck_assert_int_eq(ek_generator_engine(NULL), EK_RANDOM_TWISTER);
    ek_generator_free(generator);
}

/* Threads that draw meanwhile get other numbers, and the generator goes on as the borrower left it.
 */
TEST(borrowed_generators_go_on)
{
    ek_generator begin, meanwhile;
    ek_manual_seed(6);
    ek_tensor *first = ek_rand(EK_SHAPE(9)), *second = ek_rand(EK_SHAPE(9)),
              *x = ek_empty(EK_SHAPE(9));
    ek_manual_seed(6);
    ek_generator_borrow(&begin, &meanwhile);
    assert_ok(ek_uniform_(x, 0, 1, &begin));
    assert_close(x, first, 0, 0);
    ek_generator_give_back(&begin, &meanwhile);
    assert_close(ek_rand(EK_SHAPE(9)), second, 0, 0);
    ek_manual_seed(6);
    ek_generator_borrow(&begin, &meanwhile);
    ek_tensor *elsewhere = ek_rand(EK_SHAPE(9));
    ck_assert(element(elsewhere, 0) != element(first, 0));
    ek_generator_give_back(&begin, &meanwhile);
    ek_tensor *after = ek_rand(EK_SHAPE(9));
    ck_assert(element(after, 0) != element(first, 0) && element(after, 0) != element(elsewhere, 0));
}

/* Ranges wider than 32 bits, and narrow ones: every integer comes, and none else. */
TEST(integers)
{
    int64_t counts[7] = {0};
    ek_tensor *digits = ek_randint(-2, 5, EK_SHAPE(70000));
    for (int i = 0; i < 70000; i++)
        counts[(int)element(digits, i) + 2]++;
    for (int i = 0; i < 7; i++)
        ck_assert(counts[i] > 9600 && counts[i] < 10400);
    ek_tensor *wide = ek_randint(-(1ll << 60), 1ll << 60, EK_SHAPE(1000));
    double most = 0, least = 0;
    for (int i = 0; i < 1000; i++) {
        most = fmax(most, element(wide, i));
        least = fmin(least, element(wide, i));
    }
    ck_assert(most < 0x1p60 && most > 0x1.fp59 && least >= -0x1p60 && least < -0x1.fp59);
    ek_tensor *mask = ek_empty(EK_SHAPE(1000));
    assert_ok(ek_bernoulli_(mask, 1, NULL));
    for (int i = 0; i < 1000; i++)
        ck_assert(element(mask, i) == 1);
    assert_ok(ek_bernoulli_(mask, 0, NULL));
    for (int i = 0; i < 1000; i++)
        ck_assert(element(mask, i) == 0);
}
