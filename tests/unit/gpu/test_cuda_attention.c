/* Attention on a GPU without cuDNN is composed of products where the scores are a small share of
 * the free memory, and is done by our own kernels where they aren't. */
#include "cuda/cuda_setup.h"
#include "cuda/runtime.h"

enum { HEADS = 4, ROWS = 512, DEPTH = 4, MANY = 1 << 20, MIB = 1 << 20 };

/* What the device answers for q and k of one element each, which nobody computes. */
static bool composes(ek_shape q, ek_shape k, ek_dtype dtype)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *one = ek_zeros(EK_SHAPE(1), dtype, .device = ek_cuda(0));
    ek_tensor *a = ek_expand(one, q), *b = ek_expand(one, k);
    assert_made(a);
    assert_made(b);
    const ek_attention_params params = {.scale = 1};
    const int rc = ek_kernels_of(a)->attention_composes(cuda_dev(0), a, b, b, NULL, &params, false);
    ek_scope_end(&scope);
    ck_assert_int_ge(rc, 0);
    return rc > 0;
}

static bool composes_rows(int64_t rows, ek_dtype dtype)
{
    const ek_shape shape = EK_SHAPE(2, HEADS, rows, 64);
    return composes(shape, shape, dtype);
}

static void open_without(const char *libraries)
{
    setenv("EVENKEEL_CUDA_WITHOUT", libraries, 1);
    open_cuda("0");
}

static void set_capacity(uint64_t nbytes)
{
    assert_ok(ek_memory_set_capacity(ek_cuda(0), nbytes));
}

/* 2 x 4 x 1024 x 1024 scores are 32 MiB in f32 and 16 MiB in bf16. A few more bytes are for what
 * lies on the device: the element, and what a request is rounded up to. */
TEST(the_choice_follows_the_capacity)
{
    const uint64_t beside = 4096, needed = (uint64_t)16 * 32 * MIB;
    open_without("cudnn");
    ck_assert_uint_gt(ek_cuda_of(cuda_dev(0))->memory, 0);
    set_capacity(needed + beside);
    ck_assert(composes_rows(1024, EK_F32));
    ck_assert(!composes_rows(1025, EK_F32));
    set_capacity(needed - 1);
    ck_assert(!composes_rows(1024, EK_F32));
    ck_assert(composes_rows(1024, EK_BF16));
    set_capacity(needed / 2 + beside);
    ck_assert(composes_rows(1024, EK_BF16));
    ck_assert(!composes_rows(1024, EK_F64));
    close_cuda();
}

/* With deterministic algorithms it doesn't matter what else is in use, which threads decide. */
TEST(the_choice_follows_what_is_free)
{
    void *memory;
    open_without("cudnn");
    set_capacity((uint64_t)16 * 32 * MIB + MIB);
    assert_ok(ek_dev_alloc(cuda_dev(0), 2 * MIB, EK_MEMORY_ACTIVATION, &memory));
    ck_assert(!composes_rows(1024, EK_F32));
    ek_use_deterministic_algorithms(true);
    ck_assert(composes_rows(1024, EK_F32));
    ek_use_deterministic_algorithms(false);
    ek_dev_free(cuda_dev(0), memory, 2 * MIB, EK_MEMORY_ACTIVATION);
    ck_assert(composes_rows(1024, EK_F32));
    close_cuda();
}

TEST(few_scores_are_not_worth_many_launches)
{
    open_without("cudnn");
    set_capacity((uint64_t)1 << 40);
    ck_assert(composes(EK_SHAPE(1, 1, 1024, 8), EK_SHAPE(1, 1, 1024, 8), EK_F32));
    ck_assert(!composes(EK_SHAPE(1, 1, 1023, 8), EK_SHAPE(1, 1, 1024, 8), EK_F32));
    close_cuda();
}

/* Our kernels don't take large heads, and without cuBLAS our own products are no better. */
TEST_LOOP(what_must_be_is_so_for_any_memory, 0, 2)
{
    open_without(_i ? "cublas,cudnn" : "cudnn");
    set_capacity((uint64_t)1 << 40);
    ck_assert(composes(EK_SHAPE(1, 1, 2, 300), EK_SHAPE(1, 1, 2, 300), EK_F32));
    ck_assert(composes_rows(1024, EK_F32) == (_i == 0));
    close_cuda();
}

/* ---- both ways ---- */

typedef struct outcome {
    ek_tensor *y, *g[3]; /* on the host */
    uint64_t bytes;      /* most that was in use beside the operands */
    char told[400];
} outcome;

/* Causal attention with dropout, of which each way draws the same. Standard error goes to a file
 * meanwhile. */
static void attend(outcome *o, ek_tensor *const x[3], uint64_t capacity)
{
    ek_memory_stats stats;
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);
    ck_assert_ptr_nonnull(file);
    set_capacity(capacity);
    assert_ok(ek_memory_reset_peak(ek_cuda(0)));
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    const uint64_t before = stats.in_use;
    ek_manual_seed(5);
    ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
    for (int i = 0; i < 2; i++)
        o->y = ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = true,
                                                 .dropout_p = i ? 0.25 : 0);
    ck_assert_int_ge(dup2(kept, STDERR_FILENO), 0);
    close(kept);
    assert_made(o->y);
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    o->bytes = stats.peak - before;
    ek_tensor *sum = ek_sum(ek_to_dtype(ek_square(o->y), EK_F32));
    assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = x, .input_count = 3,
                      .gradients = o->g));
    o->y = ek_to_device(ek_to_dtype(o->y, EK_F32), ek_cpu());
    for (int i = 0; i < 3; i++)
        o->g[i] = ek_to_device(ek_to_dtype(o->g[i], EK_F32), ek_cpu());
    rewind(file);
    o->told[fread(o->told, 1, sizeof o->told - 1, file)] = '\0';
    fclose(file);
}

TEST_LOOP(both_ways_give_the_same_numbers, 0, 2)
{
    const ek_dtype dtype = _i ? EK_BF16 : EK_F32;
    const double near = _i ? 2e-2 : 1e-5;
    const uint64_t scores = (uint64_t)HEADS * ROWS * ROWS * ek_dtype_size(dtype);
    outcome own, composed;
    ek_tensor *x[3];
    setenv("EVENKEEL_CUDA_PLANS", "1", 1);
    open_without("cudnn");
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ck_assert_int_ge(HEADS * ROWS * ROWS, MANY);
    for (int i = 0; i < 3; i++) {
        ek_tensor *drawn = ek_randn(EK_SHAPE(1, HEADS, ROWS, DEPTH));
        x[i] = ek_to_device(ek_to_dtype(drawn, dtype), ek_cuda(0));
        assert_ok(ek_tensor_set_requires_grad(x[i], true));
    }
    attend(&own, x, 15 * scores);
    attend(&composed, x, 20 * scores);
    ck_assert_uint_lt(own.bytes, scores);
    ck_assert_uint_ge(composed.bytes, scores);
    assert_close_norm(composed.y, own.y, near);
    for (int i = 0; i < 3; i++)
        assert_close_norm(composed.g[i], own.g[i], near);
    char wanted[200];
    snprintf(wanted, sizeof wanted,
             "attention: %s of 1x4 heads of 4, 512x512 scores each: composed of products, scores "
             "of %llu bytes; at most ",
             ek_dtype_name(dtype), (unsigned long long)scores);
    ck_assert_ptr_nonnull(strstr(own.told, "512x512 scores each: own kernels, "));
    ck_assert_ptr_nonnull(strstr(composed.told, wanted));
    ck_assert_ptr_null(strstr(strstr(composed.told, wanted) + 1, "attention: ")); /* once */
    close_cuda();
}
