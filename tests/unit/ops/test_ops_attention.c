/* test_ops_attention.c: attention, RMS norm, rotary positions and embeddings: PyTorch's values and
 * gradients of small cases, and of large ones, in many blocks, those of a composition. */
#include "table.h"

#include "core/device.h"
#include "kernels/kernels.h"
#include "ops/attention.h"

COST(15)

#define I(k) ((int)o[k])

FROM(.file = "attention.golden", .numbered = true, .inputs = {"x", "k", "v", "m"}, .dy = "dy",
     .constants = {"mask", "scale"}, .tolerance = 1e-5)

static ek_tensor *attend(ek_tensor *const *x, const double *o, ek_tensor *const *c)
{
    return ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = c[0], .is_causal = o[0] != 0,
                                             .scale = c[1] ? element(c[1], 0) : EK_UNSET,
                                             .enable_gqa = o[1] != 0);
}

ROW(attention, BF16 | SECOND | ALONE | THIRD(1) | THIRD(2), attend(x, o, c))
ROW(attention_bias, BF16, ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]))

FROM(.file = "attention.golden", .numbered = true, .inputs = {"x", "w"}, .dy = "dy",
     .constants = {"eps"}, .tolerance = 1e-5)
ROW(rms_norm, SECOND | SLOTS | ALONE | EMPTY,
    ek_f_rms_norm(x[0], I(0), count > 1 ? x[1] : NULL, element(c[0], 0)))

FROM(.file = "attention.golden", .numbered = true, .inputs = {"x"}, .dy = "dy",
     .constants = {"cosine", "sine"}, .tolerance = 2e-6)
ROW(rotary, BF16, ek_f_rotary(x[0], c[0], c[1], (ek_rotary_pairs)I(0)))

FROM(.file = "attention.golden", .numbered = true, .inputs = {"x"}, .dy = "dy",
     .constants = {"index"}, .tolerance = 2e-6)
ROW(embedding, BF16 | KINKED, /* the padding has no gradient, but a derivative */
    o[0] != 0 ? ek_f_embedding(x[0], c[0], .padding_idx = I(1)) : ek_f_embedding(x[0], c[0]))

/* ---- attention in many blocks ---- */

/* These tests are in f32 and f64, and cuDNN attends in 16 bits only. The second run on GPUs, which
 * is without cuDNN, leaves them out. */
GROUP(wide)

/* A large case: sizes beside its mask, and what else it has. */
typedef struct large_case {
    ek_shape q, k, v;
    bool causal, gqa;
    int mask; /* 0 none, 1 u8 (L, S), 2 f (B, 1, 1, S), 3 u8 (B, H, L, S) with rows without keys */
} large_case;

#define FOUR(...)                          \
    {                                      \
        .ndim = 4, .dims = { __VA_ARGS__ } \
    }
static const large_case large_cases[] = {
    {FOUR(1, 2, 200, 20), FOUR(1, 2, 600, 20), FOUR(1, 2, 600, 40), false, false, 0},
    {FOUR(2, 2, 301, 33), FOUR(2, 2, 301, 33), FOUR(2, 2, 301, 7), true, false, 0},
    {FOUR(1, 4, 130, 16), FOUR(1, 2, 270, 16), FOUR(1, 2, 270, 16), true, true, 0},
    {FOUR(2, 3, 110, 8), FOUR(2, 1, 1100, 8), FOUR(2, 1, 1100, 64), false, true, 2},
    {FOUR(1, 1, 97, 64), FOUR(1, 1, 2050, 64), FOUR(1, 1, 2050, 3), false, false, 1},
    {FOUR(2, 2, 100, 12), FOUR(2, 2, 260, 12), FOUR(2, 2, 260, 12), false, false, 3},
};
enum { LARGE = sizeof large_cases / sizeof *large_cases };

static ek_tensor *large_mask(const large_case *l, ek_dtype dtype)
{
    const int64_t batch = l->q.dims[0], rows = l->q.dims[2], keys = l->k.dims[2];
    const ek_device at = test_home();
    ek_tensor *zero = ek_to_device(ek_scalar(0.3, dtype, ek_cpu()), at);
    switch (l->mask) {
    case 1:
        return ek_lt(zero, normal(9, EK_SHAPE(rows, keys), dtype, at));
    case 2:
        return normal(9, EK_SHAPE(batch, 1, 1, keys), dtype, at);
    case 3: {
        ek_tensor *mask =
            ek_lt(zero, normal(9, EK_SHAPE(batch, l->q.dims[1], rows, keys), dtype, at));
        ek_fill_(ek_narrow(mask, 2, 5, 3), 0);
        return mask;
    }
    default:
        return NULL;
    }
}

/* Operands as a model has them: heads inside of rows, and other numbers between rows. */
static ek_tensor *operand(uint64_t seed, ek_shape shape, ek_dtype dtype)
{
    ek_tensor *wide =
        normal(seed, EK_SHAPE(shape.dims[0], shape.dims[2], shape.dims[1], shape.dims[3] + 3),
               dtype, test_home());
    ek_tensor *x = ek_detach(ek_transpose(ek_narrow(wide, 3, 2, shape.dims[3]), 1, 2));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static ek_tensor *repeated(ek_tensor *x, int64_t heads)
{
    const ek_shape s = ek_tensor_shape(x);
    ek_tensor *wide =
        ek_expand(ek_unsqueeze(x, 2),
                  EK_SHAPE(s.dims[0], s.dims[1], heads / s.dims[1], s.dims[2], s.dims[3]));
    return ek_reshape(wide, EK_SHAPE(s.dims[0], heads, s.dims[2], s.dims[3]));
}

/* The same by operations that hold all scores. */
static ek_tensor *composed(ek_tensor *const x[3], ek_tensor *mask, const large_case *l)
{
    const int64_t heads = l->q.dims[1], rows = l->q.dims[2], keys = l->k.dims[2];
    const ek_dtype dtype = ek_tensor_dtype(x[0]);
    ek_tensor *scores = ek_mul_scalar(ek_matmul(x[0], ek_transpose(repeated(x[1], heads), -2, -1)),
                                      1 / sqrt((double)l->q.dims[3]));
    ek_tensor *away = ek_to_device(ek_scalar(-1e30, dtype, ek_cpu()), test_home());
    ek_tensor *zero = ek_to_device(ek_scalar(0, dtype, ek_cpu()), test_home());
    if (l->causal)
        scores = ek_where(ek_ge(ek_unsqueeze(ek_arange(rows, EK_I64, test_home()), 1),
                                ek_arange(keys, EK_I64, test_home())),
                          scores, away);
    if (l->mask == 2)
        scores = ek_add(scores, mask);
    else if (mask)
        scores = ek_where(mask, scores, away);
    ek_tensor *p = ek_f_softmax(scores, -1);
    if (mask && l->mask != 2) /* rows without keys: softmax made them even */
        p = ek_where(mask, p, zero);
    return ek_matmul(p, repeated(x[2], heads));
}

static void gradients_of(ek_tensor *y, ek_tensor *const x[3], ek_tensor *g[3], bool create_graph)
{
    ek_tensor *dy = normal(4, ek_tensor_shape(y), ek_tensor_dtype(y), test_home());
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = x, .input_count = 3,
                      .gradients = g, .grad_outputs = &dy, .create_graph = create_graph));
}

static ek_tensor *attend_large(ek_tensor *const x[3], ek_tensor *mask, const large_case *l)
{
    return ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = mask, .is_causal = l->causal,
                                             .enable_gqa = l->gqa);
}

/* Output, gradients, and of some the gradient of a penalty on gradients. */
TEST(attention_in_blocks_is_attention)
{
    for (int i = 0; i < LARGE; i++)
        for (int narrow = 0; narrow < 2; narrow++) {
            ek_scope scope = ek_scope_begin();
            const large_case *l = &large_cases[i];
            const ek_dtype dtype = narrow ? EK_F32 : EK_F64;
            const double near = narrow ? 2e-5 : 1e-12;
            ek_tensor *x[3] = {operand(1, l->q, dtype), operand(2, l->k, dtype),
                               operand(3, l->v, dtype)};
            ek_tensor *mask = large_mask(l, dtype), *g[3], *wanted[3], *second[3], *seconds[3];
            ek_tensor *y = attend_large(x, mask, l), *z = composed(x, mask, l);
            assert_close_norm(y, z, near);
            gradients_of(y, x, g, false);
            gradients_of(z, x, wanted, false);
            for (int k = 0; k < 3; k++)
                assert_close_norm(g[k], wanted[k], near);
            if (!narrow && i % 2) {
                gradients_of(attend_large(x, mask, l), x, g, true);
                gradients_of(composed(x, mask, l), x, wanted, true);
                ek_tensor *sum = ek_sum(ek_pow_scalar(g[0], 3)),
                          *other = ek_sum(ek_pow_scalar(wanted[0], 3));
                for (int k = 1; k < 3; k++) {
                    sum = ek_add(sum, ek_sum(ek_pow_scalar(g[k], 3)));
                    other = ek_add(other, ek_sum(ek_pow_scalar(wanted[k], 3)));
                }
                gradients_of(sum, x, second, false);
                gradients_of(other, x, seconds, false);
                for (int k = 0; k < 3; k++)
                    assert_close_norm(second[k], seconds[k], 1e-9);
            }
            ek_scope_end(&scope);
        }
}

static int composes_all(ek_dev *dev, const ek_tensor *q, const ek_tensor *k, const ek_tensor *v,
                        const ek_tensor *mask, const ek_attention_params *params, bool gradient)
{
    return 1;
}

/* The numbers are those of the device's kernels, for every kind of mask. On an emulated GPU few
 * rows and keys do, because the host's run compares many blocks with products. */
TEST(a_device_may_prefer_products)
{
    ek_dev *dev = ek_dev_get(test_home());
    assert_made(dev);
    const ek_backend *original = dev->backend;
    ek_backend backend = *original;
    ek_kernels kernels = *original->kernels;
    backend.kernels = &kernels;
    kernels.attention_composes = composes_all;
    for (int i = 0; i < LARGE; i++) {
        ek_scope scope = ek_scope_begin();
        large_case few = large_cases[i], *l = &few;
        if (test_is_short()) {
            few.q.dims[2] = 40;
            few.k.dims[2] = few.v.dims[2] = 70;
        }
        ek_tensor *x[3] = {operand(1, l->q, EK_F64), operand(2, l->k, EK_F64),
                           operand(3, l->v, EK_F64)};
        ek_tensor *mask = large_mask(l, EK_F64), *g[3], *wanted[3];
        ek_tensor *y = attend_large(x, mask, l);
        gradients_of(y, x, wanted, false);
        dev->backend = &backend;
        assert_ok(ek_memory_reset_peak(test_home()));
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_home(), &stats));
        const uint64_t before = stats.in_use;
        ek_tensor *z = attend_large(x, mask, l);
        assert_ok(ek_memory_get_stats(test_home(), &stats));
        gradients_of(z, x, g, false);
        dev->backend = original;
        ck_assert_uint_ge(stats.peak - before, 8 * (uint64_t)l->q.dims[0] * (uint64_t)l->q.dims[1] *
                                                   (uint64_t)l->q.dims[2] * (uint64_t)l->k.dims[2]);
        assert_close_norm(z, y, 1e-12);
        for (int k = 0; k < 3; k++)
            assert_close_norm(g[k], wanted[k], 1e-12);
        ek_scope_end(&scope);
    }
}

/* A query without keys gives 0 and gets no gradient; scores that are NaN or infinite give NaN. */
TEST(attention_of_no_keys_and_of_no_numbers)
{
    ek_tensor *x[3] = {operand(1, EK_SHAPE(1, 1, 3, 4), EK_F64),
                       operand(2, EK_SHAPE(1, 1, 5, 4), EK_F64),
                       operand(3, EK_SHAPE(1, 1, 5, 4), EK_F64)};
    ek_tensor *mask = ek_ones(EK_SHAPE(3, 5), EK_U8), *g[3];
    ek_fill_(ek_select(mask, 0, 1), 0);
    ek_tensor *y = ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = mask);
    gradients_of(y, x, g, false);
    for (int64_t i = 4; i < 8; i++) {
        ck_assert_double_eq(element(y, i), 0);
        ck_assert_double_eq(element(g[0], i), 0);
    }
    ck_assert_double_ne(element(g[0], 0), 0);

    ek_tensor *bias = ek_full((double)NAN, EK_SHAPE(3, 1), EK_F64);
    y = ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = bias);
    ck_assert(isnan(element(y, 0)));
    bias = ek_full((double)INFINITY, EK_SHAPE(3, 1), EK_F64);
    ck_assert(isnan(element(ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = bias), 0)));

    ek_tensor *none = ek_zeros(EK_SHAPE(1, 1, 0, 4), EK_F64);
    assert_close(ek_f_scaled_dot_product_attention(x[0], none, none),
                 ek_zeros(EK_SHAPE(1, 1, 3, 4), EK_F64), 0, 0);
    ck_assert_int_eq(ek_tensor_count(ek_f_scaled_dot_product_attention(none, x[1], x[2])), 0);
}

/* Philox drops in blocks what a composition drops from the whole, forward and backward; causal,
 * too. */
TEST_LOOP(attention_drops_in_blocks, 0, 2)
{
    const large_case l = {
        EK_SHAPE(2, 2, 120, 8), EK_SHAPE(2, 2, 300, 8), EK_SHAPE(2, 2, 300, 8), false, false, 0};
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_tensor *x[3] = {operand(1, l.q, EK_F64), operand(2, l.k, EK_F64), operand(3, l.v, EK_F64)},
              *g[3], *wanted[3];
    ek_tensor *second[3], *seconds[3];
    ek_manual_seed(5);
    ek_tensor *y =
        ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = _i, .dropout_p = 0.3);
    ek_manual_seed(5);
    ek_tensor *scores = ek_mul_scalar(ek_matmul(x[0], ek_transpose(x[1], -2, -1)), 1 / sqrt(8.0));
    if (_i)
        scores = ek_where(ek_ge(ek_unsqueeze(ek_arange(120, EK_I64, test_home()), 1),
                                ek_arange(300, EK_I64, test_home())),
                          scores, ek_to_device(ek_scalar(-1e30, EK_F64, ek_cpu()), test_home()));
    ek_tensor *z = ek_matmul(ek_f_dropout(ek_f_softmax(scores, -1), 0.3, true), x[2]);
    assert_close_norm(y, z, 1e-12);
    gradients_of(y, x, g, true);
    gradients_of(z, x, wanted, true);
    for (int k = 0; k < 3; k++)
        assert_close_norm(g[k], wanted[k], 1e-12);
    gradients_of(ek_add(ek_sum(ek_square(g[0])), ek_sum(ek_mul(g[1], g[2]))), x, second, false);
    gradients_of(ek_add(ek_sum(ek_square(wanted[0])), ek_sum(ek_mul(wanted[1], wanted[2]))), x,
                 seconds, false);
    for (int k = 0; k < 3; k++)
        assert_close_norm(second[k], seconds[k], 1e-10);
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_TWISTER));
}

static void gradient_of(ek_tensor *loss, ek_tensor *x, ek_tensor **g, bool create_graph)
{
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = g, .create_graph = create_graph));
}

/* Sets g to the gradients of x and of the loss's gradient by x for a loss of the attention of x's
 * thirds, which are split or sliced. Returns the attention. */
static ek_tensor *attention_of_thirds(ek_tensor *x, int64_t heads, bool split, bool causal,
                                      ek_tensor *g[2])
{
    const int64_t width = ek_tensor_size(x, 2) / 3;
    ek_attention_call call = {.causal = causal, .scale = 0.4};
    if (split) {
        ck_assert(ek_attention_split(&call, x, heads));
    } else {
        ek_tensor **const of[] = {&call.q, &call.k, &call.v};
        for (int i = 0; i < 3; i++)
            *of[i] = ek_transpose(ek_f_unflatten(ek_narrow(x, 2, i * width, width), 2,
                                                 EK_SHAPE(heads, width / heads)),
                                  1, 2);
    }
    ek_tensor *y = ek_attention("attention", &call, NULL);
    assert_made(y);
    for (int i = 0; i < 2; i++) {
        ek_tensor *loss = ek_sum(ek_sin(i == 0 ? y : g[0]));
        gradient_of(loss, x, &g[i], i == 0);
    }
    /* Without create_graph other code writes the gradient in place. */
    ek_tensor *loss = ek_sum(ek_sin(ek_attention("attention", &call, NULL))), *again;
    gradient_of(loss, x, &again, false);
    assert_close_norm(again, g[0], 1e-12);
    return y;
}

/* Queries, keys and values side by side, batch by batch or step by step, are attended to as their
 * slices are. */
TEST_LOOP(attention_of_one_tensor, 0, 4)
{
    const bool causal = _i % 2, steps_first = _i / 2 % 2;
    ek_tensor *x = normal(3, steps_first ? EK_SHAPE(37, 2, 3 * 24) : EK_SHAPE(2, 37, 3 * 24),
                          EK_F64, test_home());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *view = steps_first ? ek_transpose(x, 0, 1) : x, *g[2], *wanted[2];
    ek_tensor *y = attention_of_thirds(view, 3, true, causal, g);
    ek_tensor *whole = attention_of_thirds(view, 3, false, causal, wanted);
    assert_close_norm(y, whole, 1e-14);
    for (int i = 0; i < 2; i++)
        assert_close_norm(g[i], wanted[i], 1e-12);
}

GROUP(others)

TEST(attention_refuses)
{
    ek_tensor *q = ek_ones(EK_SHAPE(2, 6, 3, 4)), *k = ek_ones(EK_SHAPE(2, 2, 5, 4));
    ek_tensor *row = ek_ones(EK_SHAPE(4)), *mask = ek_ones(EK_SHAPE(3, 5), EK_U8);
    assert_refused(ek_f_scaled_dot_product_attention(q, k, k), EK_E_SHAPE, "do not broadcast");
    assert_refused(ek_f_scaled_dot_product_attention(row, k, k), EK_E_SHAPE,
                   "q needs 2 dimensions or more, got f32[4]");
    assert_refused(ek_f_scaled_dot_product_attention(k, k, k, .mask = mask, .is_causal = true),
                   EK_E_INVALID, "a mask and is_causal");
    assert_refused(ek_f_scaled_dot_product_attention(k, k, k, .mask = mask), EK_E_SHAPE,
                   "broadcast");
    assert_refused(ek_f_scaled_dot_product_attention(k, k, k,
                                                     .mask = ek_ones(EK_SHAPE(5, 5), EK_I64)),
                   EK_E_DTYPE, "a mask is bool, u8 or floating");
    assert_refused(ek_f_scaled_dot_product_attention(k, k, k, .dropout_p = 1.5), EK_E_INVALID,
                   "dropout_p is 1.5");
    assert_refused(ek_f_scaled_dot_product_attention(k, ek_ones(EK_SHAPE(2, 2, 5, 3)), k),
                   EK_E_SHAPE, "the last sizes of q and k differ");
    assert_refused(ek_f_scaled_dot_product_attention(k, k, ek_ones(EK_SHAPE(2, 2, 4, 4))),
                   EK_E_SHAPE, "how many keys");
    assert_refused(ek_f_scaled_dot_product_attention(q, ek_ones(EK_SHAPE(2, 4, 5, 4)),
                                                     ek_ones(EK_SHAPE(2, 4, 5, 4)),
                                                     .enable_gqa = true),
                   EK_E_SHAPE, "have to divide those of q");
    assert_refused(ek_f_scaled_dot_product_attention(k, ek_ones(EK_SHAPE(2, 2, 5, 4), EK_F64), k),
                   EK_E_DTYPE, "");
    ek_attention_call call = {.scale = 1};
    ek_tensor *uneven = ek_attention_split(&call, ek_ones(EK_SHAPE(2, 3, 13)), 2) ? q : NULL;
    assert_refused(uneven, EK_E_SHAPE, "a multiple of 3 for each of the 2 heads");
}

TEST(positions_and_norms_refuse)
{
    ek_tensor *x = ek_ones(EK_SHAPE(3, 4)), *table = ek_ones(EK_SHAPE(3, 2)), *c, *s;
    assert_refused(ek_f_rotary(ek_ones(EK_SHAPE(3, 3)), table, table, EK_ROTARY_HALVES), EK_E_SHAPE,
                   "of even size");
    assert_refused(ek_f_rotary(x, ek_ones(EK_SHAPE(4, 2)), table, EK_ROTARY_HALVES), EK_E_SHAPE,
                   "do not broadcast");
    assert_refused(ek_f_rotary(x, table, table, (ek_rotary_pairs)2), EK_E_INVALID, "pairs");
    ck_assert_int_eq(ek_rotary_tables(3, 5, 0, &c, &s), EK_E_INVALID);
    ek_error_clear();
    assert_refused(ek_f_rms_norm(x, 3, NULL, 0), EK_E_SHAPE, "the last 3 dimensions");
    assert_refused(ek_f_rms_norm(x, 1, NULL, -1), EK_E_INVALID, "eps must not be negative");
    assert_refused(ek_f_rms_norm(x, 1, ek_ones(EK_SHAPE(3)), 0), EK_E_SHAPE, "weight");
    assert_refused(ek_f_embedding(x, ek_zeros(EK_SHAPE(2), EK_I64), .padding_idx = 3), EK_E_INVALID,
                   "padding_idx is 3");
    assert_refused(ek_f_embedding(x, table), EK_E_DTYPE, "index");
}

/* The tables turn by what is written at their head. */
TEST(rotary_tables_turn)
{
    ek_tensor *c, *s;
    assert_ok(ek_rotary_tables(3, 4, 100, &c, &s));
    ck_assert_double_eq_tol(element(c, 5), cos(0.2), 1e-7);
    ck_assert_double_eq_tol(element(s, 4), sin(2), 1e-7);
    ck_assert_double_eq(element(c, 0), 1);
}

TEST(rms_norms_epsilon_is_the_dtypes)
{
    const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_F16, EK_BF16};
    const double epsilons[] = {0x1p-23, 0x1p-52, 0x1p-10, 0x1p-7};
    for (int i = 0; i < 4; i++) {
        ek_tensor *x = normal(1, EK_SHAPE(3, 4), EK_F32, test_home());
        x = ek_to_dtype(x, dtypes[i]);
        assert_close(ek_f_rms_norm(ek_mul_scalar(x, 1e-4), 1, NULL, EK_UNSET),
                     ek_f_rms_norm(ek_mul_scalar(x, 1e-4), 1, NULL, epsilons[i]), 0, 0);
    }
}

/* Threads don't change a bit, in either direction. */
TEST(attention_is_the_same_for_any_threads)
{
    const ek_device cpu = ek_cpu();
    const int before = ek_device_threads(cpu);
    ek_tensor *x[3], *first[4], *g[3];
    if (test_kind() != EK_HOST)
        return;
    for (int i = 0; i < 3; i++)
        x[i] = operand((uint64_t)i + 1, EK_SHAPE(1, 2, 1100, 24), EK_F32);
    for (int threads = 1; threads <= 5; threads += 2) {
        assert_ok(ek_device_set_threads(cpu, threads));
        ek_tensor *y = ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = true);
        gradients_of(y, x, g, false);
        ek_tensor *const found[4] = {y, g[0], g[1], g[2]};
        for (int i = 0; i < 4; i++) {
            if (threads > 1)
                assert_close(found[i], first[i], 0, 0);
            else
                first[i] = found[i];
        }
    }
    assert_ok(ek_device_set_threads(cpu, before));
}

/* Memory grows with the length, not with its square: all scores would be 64 MiB. */
TEST(attention_needs_no_scores)
{
    enum { ROWS = 4096, MOST = 16 << 20 };
    ek_memory_stats stats;
    ek_tensor *x[3], *g[3];
    for (int i = 0; i < 3; i++)
        x[i] = operand((uint64_t)i + 1, EK_SHAPE(1, 1, test_kind() == EK_HOST ? ROWS : 256, 16),
                       EK_F32);
    assert_ok(ek_memory_reset_peak(test_home()));
    assert_ok(ek_memory_get_stats(test_home(), &stats));
    const uint64_t before = stats.in_use;
    gradients_of(ek_f_scaled_dot_product_attention(x[0], x[1], x[2]), x, g, false);
    assert_ok(ek_memory_get_stats(test_home(), &stats));
    ck_assert_uint_gt(stats.peak, before);
    ck_assert_uint_lt(stats.peak - before, MOST);
}
