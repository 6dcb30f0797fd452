/* Philox's numbers on every instruction set, on one thread and on two: the same bits as those of
 * the plain loop, and as the GPU's. */
#include "conv_isas.h"
#include "core/draw.h"

enum { COUNT = 40003 };

static const struct {
    const char *name;
    ek_draw draw;
} cases[] = {
    {"uniform", {EK_DRAW_UNIFORM, 7, 3, 0, COUNT, 0, -0.3, 1.1, 0, 0}},
    {"uniform, high numbers", {EK_DRAW_UNIFORM, ~0ull, ~1ull, 1ll << 36, COUNT, 0, 0, 1, 0, 0}},
    {"uniform, rows", {EK_DRAW_UNIFORM, 7, 3, 13, 1001, 3003, 0, 1, 0, 0}},
    {"uniform, carry", {EK_DRAW_UNIFORM, 7, 3, (1ll << 34) - 4000, COUNT, 0, 0, 1, 0, 0}},
    {"normal", {EK_DRAW_NORMAL, 7, 3, 0, COUNT, 0, 0, 1, 0, 0}},
    {"normal, from an odd number", {EK_DRAW_NORMAL, 7, 3, 3, COUNT, 0, 0.5, 2, 0, 0}},
    {"normal, rows", {EK_DRAW_NORMAL, 7, 3, 8, 96, 96, 0.5, 2, 0, 0}},
    {"normal, single elements", {EK_DRAW_NORMAL, 7, 3, 1, 1, 1, 0.5, 2, 0, 0}},
    {"integers", {EK_DRAW_INTEGERS, 7, 3, 2, COUNT, 0, 0, 0, 5, 200}},
    {"wide integers", {EK_DRAW_INTEGERS, 7, 3, 1, COUNT, 0, 0, 0, -9, (1ull << 52) - 1}},
    {"bernoulli", {EK_DRAW_BERNOULLI, 7, 3, 0, COUNT, 0, 0.3, 0, 0, 0}},
    {"never", {EK_DRAW_BERNOULLI, 7, 3, 0, COUNT, 0, 0, 0, 0, 0}},
    {"always", {EK_DRAW_BERNOULLI, 7, 3, 0, COUNT, 0, 1, 0, 0, 0}},
    {"dropout", {EK_DRAW_DROPOUT, 7, 3, 0, COUNT, 0, 0.9, 1 / 0.9, 0, 0}},
    {"dropout, rows", {EK_DRAW_DROPOUT, 7, 3, 5, 640, 1280, 0.5, 2, 0, 0}},
};
enum { CASES = sizeof cases / sizeof *cases };

static bool fits(const ek_draw *draw, ek_dtype dtype)
{
    if (draw->kind == EK_DRAW_UNIFORM || draw->kind == EK_DRAW_NORMAL ||
        draw->kind == EK_DRAW_DROPOUT)
        return ek_dtype_is_floating(dtype);
    return draw->range <= 256 || dtype == EK_I64 || dtype == EK_F64;
}

/* Calls the backend's slot. */
static int drawn(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *residual,
                 const ek_draw *draw)
{
    const ek_drawn tensors = {out, x, residual};
    return dev->backend->draw(dev, &tensors, draw);
}

/* A pattern's elements; its 0x5a are an odd number or NaN. */
static twin numbers(ek_dtype dtype, twin_layout layout)
{
    return twin_new(dtype, 1, (int64_t[]){COUNT}, layout);
}

static void check(int c, ek_dtype dtype, twin_layout layout)
{
    static unsigned char wanted[COUNT * 8];
    const ek_draw *draw = &cases[c].draw;
    const char *what = cases[c].name;
    const size_t nbytes = COUNT * ek_dtype_size(dtype);
    twin x = numbers(dtype, layout), out = numbers(dtype, layout);
    if (draw->kind == EK_DRAW_DROPOUT) {
        x = twin_uniform(x, -2, 2, 5);
        case_set(x.host, 17, NAN);
        case_set(x.host, 18, INFINITY);
        twin_push(x);
    } else {
        x = twin_none;
    }
    const ek_drawn_rows rows = {.out = wanted,
                                .x = x.host ? ek_tensor_address(x.host) : NULL,
                                .dtype = dtype,
                                .x_dtype = dtype};
    ek_draw_fill(draw, ek_philox_plain_blocks, &rows, 0, COUNT);
    for (ek_isa isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++)
        for (int threads = 1; threads <= 2 && conv_limit_isa(isa); threads++) {
            ek_dev *dev = case_device(threads);
            case_poison(out.host);
            assert_ok(drawn(dev, out.host, x.host, NULL, draw));
            ck_assert_msg(memcmp(ek_tensor_address(out.host), wanted, nbytes) == 0, "%s, %s", what,
                          ek_dtype_name(dtype));
        }
    if (out.cuda) {
        ek_dev *dev = twin_dev(EK_CUDA);
        assert_ok(drawn(dev, out.cuda, x.cuda, NULL, draw));
        if (draw->kind != EK_DRAW_DROPOUT) /* NaNs have many bits */
            ck_assert_msg(memcmp(twin_bytes(out, 1), wanted, nbytes) == 0, "%s, %s on the GPU",
                          what, ek_dtype_name(dtype));
        twin_same(out, what);
    }
}

TEST_LOOP(the_same_numbers_everywhere, 0, CASES)
{
    for (int t = 0; t < EK_DTYPES; t++)
        for (int l = TWIN_ROWS; l <= TWIN_DENSE_OFFSET; l += TWIN_DENSE_OFFSET - TWIN_ROWS) {
            ek_scope scope = ek_scope_begin();
            if (fits(&cases[_i].draw, (ek_dtype)t))
                check(_i, (ek_dtype)t, (twin_layout)l);
            ek_scope_end(&scope);
        }
}

/* Dropout multiplies: what isn't kept becomes 0, but NaN stays, and infinity becomes it. */
TEST(dropout_multiplies)
{
    twin x = twin_uniform(numbers(EK_F32, TWIN_ROWS), 1, 2, 3), out = numbers(EK_F32, TWIN_ROWS);
    const ek_draw draw = {EK_DRAW_DROPOUT, 7, 3, 0, COUNT, 0, 0.75, 1 / 0.75, 0, 0};
    ek_dev *dev = case_device(2);
    int kept = 0;
    assert_ok(drawn(dev, out.host, x.host, NULL, &draw));
    for (int64_t i = 0; i < COUNT; i++) {
        float got = (float)case_get(out.host, i);
        case_must(got == 0 || got == (float)case_get(x.host, i) * (float)(1 / 0.75));
        kept += got != 0;
    }
    ck_assert(abs(kept - COUNT * 3 / 4) < 4 * 87); /* four deviations */
    for (int64_t i = 0; i < COUNT; i++)
        case_set(x.host, i, i % 2 ? NAN : INFINITY);
    assert_ok(drawn(dev, out.host, x.host, NULL, &draw));
    for (int64_t i = 0; i < COUNT; i++)
        case_must(isnan(case_get(out.host, i)) || (i % 2 == 0 && isinf(case_get(out.host, i))));
}

/* ---- dropout of one dtype that is written, or added to a residual, in another ---- */

static const ek_dtype mixtures[][2] = {{EK_F32, EK_F32},  {EK_F64, EK_F64},  {EK_BF16, EK_BF16},
                                       {EK_F16, EK_F16},  {EK_F32, EK_BF16}, {EK_F32, EK_F16},
                                       {EK_BF16, EK_F32}, {EK_F16, EK_F32}};

/* The same in steps of their own, each of which rounds. */
static void mixed_in_steps(ek_tensor *out, const ek_tensor *x, const ek_tensor *residual,
                           const ek_draw *draw)
{
    ek_dev *dev = ek_tensor_dev(out);
    const ek_kernels *host = twin_host();
    const ek_dtype narrower = ek_dtype_is_narrow(x->dtype) ? x->dtype : out->dtype;
    twin from = numbers(narrower, TWIN_ROWS), to = numbers(narrower, TWIN_ROWS);
    assert_ok(host->copy(dev, from.host, x));
    assert_ok(drawn(dev, to.host, from.host, NULL, draw));
    assert_ok(host->copy(dev, out, to.host));
    if (residual)
        assert_ok(host->binary(dev, EK_BINARY_ADD, out, residual, out, 1));
}

TEST_LOOP(mixed_dropout, 0, 2 * 8)
{
    const ek_dtype dtype = mixtures[_i / 2][0], from = mixtures[_i / 2][1];
    const bool adds = _i % 2;
    for (int c = CASES - 2; c < CASES; c++)
        for (int l = TWIN_ROWS; l <= TWIN_DENSE_OFFSET; l += TWIN_DENSE_OFFSET - TWIN_ROWS) {
            ek_scope scope = ek_scope_begin();
            const ek_draw *draw = &cases[c].draw;
            twin x = twin_uniform(numbers(from, (twin_layout)l), -2, 2, 5);
            twin residual = adds ? twin_uniform(numbers(dtype, TWIN_ROWS), -2, 2, 6) : twin_none;
            twin out = numbers(dtype, (twin_layout)l), wanted = numbers(dtype, TWIN_ROWS);
            mixed_in_steps(wanted.host, x.host, residual.host, draw);
            ek_dev *dev = twin_dev(EK_HOST);
            assert_ok(drawn(dev, out.host, x.host, residual.host, draw));
            for (int64_t i = 0; i < COUNT; i++)
                case_must(case_get(out.host, i) == case_get(wanted.host, i));
            if (out.cuda) {
                dev = twin_dev(EK_CUDA);
                assert_ok(drawn(dev, out.cuda, x.cuda, residual.cuda, draw));
                twin_same(out, cases[c].name);
            }
            ek_scope_end(&scope);
        }
}
