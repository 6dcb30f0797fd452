/* test_random.c: the generator draws what PyTorch draws, to the bit. */
#include "core/tensor.h"
#include "unit.h"

static const uint64_t seeds[] = {0, 1, 42, 1234, (1ull << 32) + 1, (1ull << 53) - 1};
enum { SEEDS = sizeof(seeds) / sizeof(seeds[0]) };
static const int64_t sizes[] = {1, 3, 12, 15, 16, 17, 20, 32, 33, 100};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), TOTAL = 249 };

static const struct {
    ek_dtype dtype;
    const char *name;
} types[] = {{EK_F32, "f32"}, {EK_F64, "f64"}, {EK_BF16, "bf16"}};

/* The same bytes in row-major order. */
static void assert_bits(const ek_tensor *tensor, const ek_tensor *expected)
{
    assert_made(tensor);
    ek_shape a = ek_tensor_shape(tensor), b = ek_tensor_shape(expected);
    ck_assert_int_eq(ek_tensor_dtype(tensor), ek_tensor_dtype(expected));
    ck_assert(ek_shape_equal(&a, &b));
    size_t nbytes = (size_t)ek_tensor_count(tensor) * ek_dtype_size(ek_tensor_dtype(tensor));
    uint8_t *x = malloc(nbytes), *y = malloc(nbytes);
    ck_assert(x && y);
    assert_ok(ek_to_data(tensor, x, nbytes));
    assert_ok(ek_to_data(expected, y, nbytes));
    for (size_t i = 0; i < nbytes; i++)
        ck_assert_msg(x[i] == y[i], "byte %zu is %02x instead of %02x", i, x[i], y[i]);
    free(x);
    free(y);
}

static ek_tensor *seeded_golden(const char *kind, const char *type, uint64_t seed)
{
    char name[100];
    snprintf(name, sizeof(name), "%s%s%s/%llu", kind, *type ? "/" : "", type,
             (unsigned long long)seed);
    return golden("random.golden", name);
}

/* Fills of all sizes one after the other against the golden that has them joined. */
static void check_fills(const char *kind)
{
    for (int t = 0; t < 3; t++) {
        size_t size = ek_dtype_size(types[t].dtype);
        for (int s = 0; s < SEEDS; s++) {
            uint8_t joined[TOTAL * 8];
            size_t used = 0;
            ek_manual_seed(seeds[s]);
            for (int i = 0; i < SIZES; i++) {
                ek_tensor *x = NULL;
                if (!strcmp(kind, "rand")) {
                    x = ek_rand(EK_SHAPE(sizes[i]), types[t].dtype);
                } else if (!strcmp(kind, "randn")) {
                    x = ek_randn(EK_SHAPE(sizes[i]), types[t].dtype);
                } else {
                    x = ek_empty(EK_SHAPE(sizes[i]), types[t].dtype);
                    assert_made(x);
                    assert_ok(!strcmp(kind, "uniform") ? ek_uniform_(x, -0.3, 1.1, NULL)
                                                       : ek_normal_(x, 0.25, 1.5, NULL));
                }
                assert_made(x);
                assert_ok(ek_to_data(x, joined + used, (size_t)sizes[i] * size));
                used += (size_t)sizes[i] * size;
            }
            assert_bits(ek_from_data(joined, EK_SHAPE(TOTAL), types[t].dtype),
                        seeded_golden(kind, types[t].name, seeds[s]));
        }
    }
}

TEST(uniform_fills)
{
    check_fills("rand");
    check_fills("uniform");
}

TEST(normal_fills)
{
    check_fills("randn");
    check_fills("normal");
}

/* Numbers published elsewhere: other builds of PyTorch, and the Mersenne Twister's own. */
TEST(published_vectors)
{
    static const uint32_t first[] = {2357136044u, 2546248239u, 3071714933u, 3626093760u};
    static const int64_t permutation[] = {2, 6, 1, 8, 4, 5, 0, 9, 3, 7};
    static const float normal[16] = {1.92691529f,   1.48728406f,   0.900717199f,   -2.10552096f,
                                     0.678418458f,  -1.23454487f,  -0.0430674776f, -1.60466695f,
                                     -0.752135277f, 1.64872301f,   -0.392478645f,  -1.40360713f,
                                     -0.727881312f, -0.559430182f, -0.768838882f,  0.76244539f};
    float few[3];
    ek_manual_seed(0);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(ek_random_u32(NULL), first[i]);
    int64_t out[10];
    ek_manual_seed(42);
    assert_ok(ek_randperm(10, out, NULL));
    ck_assert_mem_eq(out, permutation, sizeof(out));
    ek_manual_seed(42);
    assert_bits(ek_randn(EK_SHAPE(16)), ek_from_data(normal, EK_SHAPE(16)));
    /* Where contraction shows first with seed 0. */
    ek_manual_seed(0);
    ck_assert(element(ek_randn(EK_SHAPE(1024)), 213) == (double)0.986836076f);
    ek_manual_seed(0);
    assert_made(ek_randn(EK_SHAPE(12)));
    assert_ok(ek_to_data(ek_randn(EK_SHAPE(3)), few, sizeof(few)));
    ck_assert(few[0] == -0.856674612f && few[1] == 1.10060418f && few[2] == -1.07118738f);
}

TEST(integers)
{
    for (int s = 0; s < SEEDS; s++) {
        int64_t order[50];
        ek_manual_seed(seeds[s]);
        assert_ok(ek_randperm(50, order, NULL));
        assert_bits(ek_from_data(order, EK_SHAPE(50), EK_I64),
                    seeded_golden("randperm", "", seeds[s]));
        assert_bits(ek_randint(-5, 1000, EK_SHAPE(20)), seeded_golden("randint", "", seeds[s]));
        assert_bits(ek_randint(-(1ll << 40), 1ll << 50, EK_SHAPE(20)),
                    seeded_golden("randint_wide", "", seeds[s]));
        ek_tensor *f32 = ek_empty(EK_SHAPE(20));
        assert_ok(ek_random_(f32, -7, 9, NULL));
        assert_bits(f32, seeded_golden("random_f32", "", seeds[s]));
        ek_tensor *u8 = ek_empty(EK_SHAPE(20), EK_U8);
        assert_ok(ek_random_(u8, 3, 256, NULL));
        assert_bits(u8, seeded_golden("random_u8", "", seeds[s]));
        int64_t wide[3];
        for (int i = 0; i < 3; i++)
            wide[i] = (int64_t)(ek_random_u64(NULL) & INT64_MAX);
        assert_bits(ek_from_data(wide, EK_SHAPE(3), EK_I64),
                    seeded_golden("random64", "", seeds[s]));
    }
}

TEST(every_rounding)
{
    ek_manual_seed(123);
    assert_bits(ek_randn(EK_SHAPE(4096)), golden("random.golden", "long"));
}

TEST(memory_order_does_not_matter)
{
    ek_tensor *weight = ek_empty(EK_SHAPE(3, 4, 2, 2), .format = EK_CHANNELS_LAST);
    assert_made(weight);
    uint64_t version = ek_tensor_version(weight);
    ek_manual_seed(7);
    assert_ok(ek_normal_(weight, 0, 1, NULL));
    assert_bits(weight, golden("random.golden", "weight"));
    ck_assert_uint_gt(ek_tensor_version(weight), version);
}

/* Twice, so that what a fill leaves counts. */
static void check_strided(const char *kind, const char *type, ek_dtype dtype)
{
    ek_tensor *permuted = ek_empty(EK_SHAPE(2, 3, 7), dtype);
    const struct {
        const char *name;
        ek_tensor *x;
    } layouts[] = {
        {"transposed",
         ek_tensor_view(ek_empty(EK_SHAPE(20), dtype), 2, (int64_t[]){5, 4}, (int64_t[]){1, 5}, 0)},
        {"gaps",
         ek_tensor_view(ek_empty(EK_SHAPE(48), dtype), 2, (int64_t[]){6, 4}, (int64_t[]){8, 2}, 1)},
        {"permuted", ek_tensor_view(permuted, 3, (int64_t[]){5, 2, 3}, (int64_t[]){1, 21, 7}, 0)},
        {"row",
         ek_tensor_view(ek_empty(EK_SHAPE(34), dtype), 1, (int64_t[]){17}, (int64_t[]){2}, 0)},
    };
    for (int i = 0; i < 4; i++) {
        ek_tensor *x = layouts[i].x;
        assert_made(x);
        ek_manual_seed(42);
        for (int turn = 1; turn <= 2; turn++) {
            char name[100];
            snprintf(name, sizeof name, "strided/%s/%s/%s/%d", kind, type, layouts[i].name, turn);
            assert_ok(!strcmp(kind, "uniform")  ? ek_uniform_(x, -0.3, 1.1, NULL)
                      : !strcmp(kind, "normal") ? ek_normal_(x, 0.25, 1.5, NULL)
                      : !strcmp(kind, "random") ? ek_random_(x, 3, 100, NULL)
                                                : ek_bernoulli_(x, 0.3, NULL));
            assert_bits(x, golden("random.golden", name));
        }
    }
}

TEST(other_memory_is_filled_in_its_own_order)
{
    for (int t = 0; t < 3; t++) {
        check_strided("uniform", types[t].name, types[t].dtype);
        check_strided("normal", types[t].name, types[t].dtype);
    }
    check_strided("random", "f32", EK_F32);
    check_strided("random", "i64", EK_I64);
    check_strided("random", "u8", EK_U8);
    check_strided("bernoulli", "f32", EK_F32);
    check_strided("bernoulli", "f64", EK_F64);
    check_strided("bernoulli", "bf16", EK_BF16);
    check_strided("bernoulli", "i64", EK_I64);
    check_strided("bernoulli", "u8", EK_U8);
}

static void assert_state(ek_generator *generator, const char *name)
{
    uint8_t state[EK_GENERATOR_STATE_BYTES];
    assert_ok(ek_generator_get_state(generator, state, sizeof(state)));
    assert_bits(ek_from_data(state, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8),
                golden("random.golden", name));
}

static void load_state(ek_generator *generator, const char *name)
{
    uint8_t state[EK_GENERATOR_STATE_BYTES];
    assert_ok(ek_to_data(golden("random.golden", name), state, sizeof(state)));
    assert_ok(ek_generator_set_state(generator, state, sizeof(state)));
}

TEST(states_are_pytorchs)
{
    ek_generator *generator = ek_generator_new(0);
    ek_tensor *x = ek_empty(EK_SHAPE(700)), *four = ek_empty(EK_SHAPE(4)),
              *five = ek_empty(EK_SHAPE(5)), *three = ek_empty(EK_SHAPE(3));
    ck_assert_ptr_nonnull(generator);
    ek_generator_seed(generator, (1ull << 40) + 9);
    assert_state(generator, "state/fresh");
    assert_ok(ek_uniform_(x, 0, 1, generator));
    assert_state(generator, "state/middle");
    assert_ok(ek_uniform_(four, 0, 1, generator));
    assert_ok(ek_normal_(three, 0, 1, generator));
    assert_state(generator, "state/cached");

    load_state(generator, "state/cached");
    assert_ok(ek_normal_(five, 0, 1, generator));
    assert_bits(five, golden("random.golden", "state/cached/next"));
    load_state(NULL, "state/middle");
    assert_bits(ek_rand(EK_SHAPE(4)), golden("random.golden", "state/middle/next"));
    load_state(generator, "state/fresh");
    assert_state(generator, "state/fresh");
    ek_generator_free(generator);
}

TEST(states_are_checked)
{
    uint8_t state[EK_GENERATOR_STATE_BYTES] = {0};
    assert_refused(ek_generator_set_state(NULL, state, sizeof(state)), EK_E_FORMAT,
                   "not a generator's state");
    assert_refused(ek_generator_set_state(NULL, state, 100), EK_E_INVALID,
                   "100 bytes; a state has 5056");
    assert_refused(ek_generator_get_state(NULL, NULL, sizeof(state)), EK_E_INVALID, "NULL");
}

TEST(default_seed)
{
    ek_generator *generator = ek_generator_new(67280421310721ull);
    ck_assert_ptr_nonnull(generator);
    for (int i = 0; i < 700; i++)
        ck_assert_uint_eq(ek_random_u32(NULL), ek_random_u32(generator));
    ek_generator_free(generator);
}

TEST(bernoulli)
{
    ek_tensor *mask = ek_empty(EK_SHAPE(1000)), *u;
    int ones = 0;
    ek_manual_seed(3);
    assert_ok(ek_bernoulli_(mask, 0.3, NULL));
    ek_manual_seed(3);
    u = ek_rand(EK_SHAPE(1000), EK_F64);
    for (int i = 0; i < 1000; i++) {
        ck_assert(element(mask, i) == (element(u, i) < 0.3 ? 1 : 0));
        ones += element(mask, i) == 1;
    }
    ck_assert_int_gt(ones, 250);
    ck_assert_int_lt(ones, 350);
    assert_ok(ek_bernoulli_(mask, 1, NULL));
    ck_assert(element(mask, 999) == 1);
    assert_ok(ek_bernoulli_(mask, 0, NULL));
    ck_assert(element(mask, 999) == 0);
}

TEST(wrong_arguments)
{
    ek_tensor *i64 = ek_empty(EK_SHAPE(2), EK_I64), *f32 = ek_empty(EK_SHAPE(2)),
              *u8 = ek_empty(EK_SHAPE(2), EK_U8);
    assert_refused(ek_uniform_(i64, 0, 1, NULL), EK_E_DTYPE, "uniform_: i64[2]");
    assert_refused(ek_normal_(u8, 0, 1, NULL), EK_E_DTYPE, "normal_");
    assert_refused(ek_uniform_(f32, 1, 0, NULL), EK_E_INVALID, "low 1, high 0");
    assert_refused(ek_uniform_(f32, NAN, 0, NULL), EK_E_INVALID, "uniform_");
    assert_refused(ek_normal_(f32, 0, -1, NULL), EK_E_INVALID, "std -1");
    assert_refused(ek_normal_(f32, 0, NAN, NULL), EK_E_INVALID, "std");
    assert_refused(ek_random_(f32, 5, 5, NULL), EK_E_INVALID, "low 5, high 5");
    assert_refused(ek_random_(u8, 0, 257, NULL), EK_E_INVALID, "[0, 256)");
    assert_refused(ek_bernoulli_(f32, 1.5, NULL), EK_E_INVALID, "p 1.5");
    assert_refused(ek_randperm(-1, NULL, NULL), EK_E_INVALID, "negative");
    /* One number for several elements; none has been drawn. */
    uint8_t before[EK_GENERATOR_STATE_BYTES], after[EK_GENERATOR_STATE_BYTES];
    ek_tensor *expanded = ek_tensor_view(f32, 2, (int64_t[]){3, 2}, (int64_t[]){0, 1}, 0);
    ek_manual_seed(1);
    assert_ok(ek_generator_get_state(NULL, before, sizeof before));
    assert_refused(ek_uniform_(expanded, 0, 1, NULL), EK_E_INVALID,
                   "uniform_: elements of f32[3, 2] on cpu share memory");
    assert_refused(ek_normal_(expanded, 0, 1, NULL), EK_E_INVALID, "normal_: elements of");
    assert_refused(ek_random_(expanded, 0, 2, NULL), EK_E_INVALID, "random_: elements of");
    assert_refused(ek_bernoulli_(expanded, 0.5, NULL), EK_E_INVALID, "bernoulli_: elements of");
    assert_ok(ek_generator_get_state(NULL, after, sizeof after));
    ck_assert_mem_eq(before, after, sizeof before);
    assert_refused(ek_uniform_(NULL, 0, 1, NULL), EK_E_INVALID, "NULL");
    assert_ok(ek_randperm(0, NULL, NULL));
    assert_made(ek_randn(EK_SHAPE(0, 3)));
}
