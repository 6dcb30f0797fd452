/* test_host_gemm.c: matrix products on plain memory: elements are near their sums in f64, an
 * epilogue sees each of them once, with its final sum, and processors with FMA compute the same
 * bits on any number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/gemm.h"
#include "host/host.h"
#include "host/isa.h"
#include "host_cases.h"

COST(15)

/* Forms of c: rows, rows with gaps, columns, and no unit stride. */
enum { ROWS, GAPS, COLUMNS, STEPS, C_FORMS };

typedef struct shape {
    int64_t batch, n, m, k;
    bool shared; /* the batch shares b */
} shape;

/* The last eight: threads pack rows of a for themselves, in both orders of its memory; share packed
 * a; copies of c's rows are kept through all of k; few rows stream several groups of columns of b
 * through two blocks of k; packed a is shared in several parts, of rows and of k, where c's columns
 * are contiguous; c's rows are copied again for each part of k; all columns are one group where
 * level 2 cache is large. */
static const shape shapes[] = {
    {1, 1, 1, 1, false},        {1, 5, 3, 0, false},       {3, 6, 5, 8, false},
    {2, 70, 67, 20, false},     {3, 13, 33, 40, true},     {1, 12, 700, 130, false},
    {1, 260, 100, 300, false},  {1, 33, 530, 270, true},   {1, 8, 90, 1100, false},
    {1, 90, 9, 1100, false},    {1, 300, 10, 600, true},   {1, 64, 64, 2100, false},
    {7, 64, 64, 64, false},     {1, 12, 13, 3000, false},  {2, 4, 200, 700, false},
    {1, 2101, 20, 600, false},  {1, 200, 40, 1024, false}, {2, 140, 270, 520, false},
    {1, 310, 100, 1100, false}, {2, 13, 1100, 600, false}, {1, 2101, 265, 520, false},
    {1, 60, 700, 1100, false},  {1, 300, 260, 950, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t c_nelements(const shape *s)
{
    return s->batch * s->n * s->m * 4 + s->batch * s->n * 4;
}

/* Uniform in [-1, 1), with more bits than sums keep, so that orders of sums show. */
static void *random_elements(ek_dtype dtype, int64_t count, uint64_t seed)
{
    void *data = malloc(ek_dtype_size(dtype) * (size_t)(count + 1));
    case_must(data);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double value = (double)(int64_t)(state >> 11) / (double)(1ll << 52) - 1;
        if (dtype == EK_F32)
            ((float *)data)[i] = (float)value;
        else
            ((double *)data)[i] = value;
    }
    return data;
}

/* form: bit 0: a by columns, bit 1: b by columns, then the form of c. */
static ek_gemm describe(const shape *s, ek_dtype dtype, int form)
{
    ek_gemm g = {.dtype = dtype, .batch = s->batch, .n = s->n, .m = s->m, .k = s->k};
    g.a = (ek_matrices){NULL, s->n * s->k, form & 1 ? 1 : s->k, form & 1 ? s->n : 1};
    g.b =
        (ek_matrices){NULL, s->shared ? 0 : s->k * s->m, form & 2 ? 1 : s->m, form & 2 ? s->k : 1};
    const int c = form / 4;
    const int64_t row = c == ROWS ? s->m : c == GAPS ? s->m + 3 : c == COLUMNS ? 1 : 2 * s->m;
    g.c = (ek_matrices){NULL, s->n * (c == COLUMNS ? s->m : row), row,
                        c == COLUMNS ? s->n
                        : c == STEPS ? 2
                                     : 1};
    return g;
}

static double value_at(ek_dtype dtype, const void *data, int64_t i)
{
    return dtype == EK_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void value_set(ek_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == EK_F32)
        ((float *)data)[i] = (float)value;
    else
        ((double *)data)[i] = value;
}

typedef struct epilogue {
    const ek_gemm *gemm;
    _Atomic int64_t elements;
} epilogue;

/* Each element once: a second call would change the element again. */
static double finished(double sum, int64_t batch, int64_t row, int64_t column)
{
    return 2 * sum + (double)(batch + row % 3 + column % 5);
}

static void finish(void *context, const ek_gemm_area *area)
{
    epilogue *e = context;
    const ek_gemm *g = e->gemm;
    const int64_t at = area->batch * g->c.batch_stride + area->row * g->c.row_stride +
                       area->column * g->c.column_stride;
    case_must((char *)area->c == (char *)g->c.data + at * (int64_t)ek_dtype_size(g->dtype));
    case_must(area->row_stride == g->c.row_stride && area->column_stride == g->c.column_stride);
    for (int64_t i = 0; i < area->rows; i++)
        for (int64_t j = 0; j < area->columns; j++) {
            const int64_t to = i * area->row_stride + j * area->column_stride;
            value_set(g->dtype, area->c, to,
                      finished(value_at(g->dtype, area->c, to), area->batch, area->row + i,
                               area->column + j));
        }
    e->elements += area->rows * area->columns;
}

/* c of a product, which the caller frees; `before` is what c had. */
static void *computed(ek_dev *dev, ek_gemm g, const shape *s, const void *before, epilogue *e)
{
    const size_t nbytes = ek_dtype_size(g.dtype) * (size_t)c_nelements(s);
    g.c.data = malloc(nbytes);
    case_must(g.c.data);
    memcpy(g.c.data, before, nbytes);
    if (e) {
        *e = (epilogue){.gemm = &g};
        g.finish = finish;
        g.finish_context = e;
    }
    assert_ok(ek_gemm_run(dev, &g));
    case_must(!e || e->elements == g.batch * g.n * g.m);
    return g.c.data;
}

/* Fails unless an element is near the sum in f64. */
static void check_sum(const ek_gemm *g, const void *before, const void *sums, int64_t batch,
                      int64_t row, int64_t column)
{
    const ek_dtype t = g->dtype;
    const int64_t at =
        batch * g->c.batch_stride + row * g->c.row_stride + column * g->c.column_stride;
    double sum = g->accumulate ? value_at(t, before, at) : 0;
    if (g->bias)
        sum += value_at(t, g->bias, column * g->bias_stride);
    for (int64_t d = 0; d < g->k; d++)
        sum +=
            value_at(t, g->a.data,
                     batch * g->a.batch_stride + row * g->a.row_stride + d * g->a.column_stride) *
            value_at(t, g->b.data,
                     batch * g->b.batch_stride + d * g->b.row_stride + column * g->b.column_stride);
    const double limit = (t == EK_F32 ? 1e-6 : 1e-14) * (double)(g->k + 8);
    if (!(fabs(value_at(t, sums, at) - sum) <= limit))
        ck_abort_msg("(%d, %d) is %g instead of %g", (int)row, (int)column, value_at(t, sums, at),
                     sum);
}

static void limit_isa(ek_isa isa)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    setenv("EVENKEEL_HOST_ISA", names[isa], 1);
    assert_ok(ek_host_read_settings());
}

static void check(const shape *s, ek_dtype dtype, int form, int bias_stride, bool accumulate)
{
    ek_gemm g = describe(s, dtype, form);
    const size_t nbytes = ek_dtype_size(dtype) * (size_t)c_nelements(s);
    g.a.data = random_elements(dtype, s->batch * s->n * s->k, 1);
    g.b.data = random_elements(dtype, s->batch * s->k * s->m, 2);
    void *before = random_elements(dtype, c_nelements(s), 3), *once = NULL;
    void *bias = random_elements(dtype, s->m * 3, 4);
    g.bias = bias_stride ? bias : NULL;
    g.bias_stride = bias_stride;
    g.accumulate = accumulate;
    limit_isa(EK_ISA_AVX512);
    const ek_isa best = ek_host_isa();
    for (ek_isa isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++) {
        limit_isa(isa);
        if (ek_host_isa() != isa)
            continue;
        const bool own = dtype == EK_F64 || isa < EK_ISA_AVX512; /* oneDNN has its own order */
        /* Without vectors a large product takes long: one thread without the epilogue, and two or
         * three, by turns; in f64, which takes ten times as long as f32, every other form. The
         * other sets share tiles by one code with this one. */
        const bool slow =
            isa == EK_ISA_PLAIN && best > EK_ISA_PLAIN && s->batch * s->n * s->m * s->k > 10000000;
        if (slow && dtype == EK_F64 && form / 6 % 2 == (int)(s - shapes) % 2)
            continue;
        for (int threads = 1; threads <= 3; threads++) {
            epilogue e;
            if (slow && threads == 2 + form / 2 % 2)
                continue;
            ek_dev *dev = case_device(threads);
            void *sums = computed(dev, g, s, before, NULL);
            if (own && once && memcmp(once, sums, nbytes) != 0)
                ck_abort_msg("%d threads, isa %d: other bits", threads, isa);
            if (!once) {
                once = malloc(nbytes);
                case_must(once);
                memcpy(once, sums, nbytes);
            }
            if (slow && threads == 1) {
                free(sums);
                continue;
            }
            void *ends = computed(dev, g, s, before, &e);
            for (int64_t b = 0; b < s->batch; b++)
                for (int64_t i = 0; i < s->n; i++)
                    for (int64_t j = 0; j < s->m; j++) {
                        if ((i * 31 + j) % 61 == 0 || j + 1 == s->m)
                            check_sum(&g, before, sums, b, i, j);
                        const int64_t at =
                            b * g.c.batch_stride + i * g.c.row_stride + j * g.c.column_stride;
                        double sum = value_at(dtype, sums, at);
                        value_set(dtype, sums, at, finished(sum, b, i, j));
                    }
            if (memcmp(ends, sums, nbytes) != 0)
                ck_abort_msg("%d threads, isa %d: not the epilogue's", threads, isa);
            free(sums);
            free(ends);
        }
        if (isa == EK_ISA_PLAIN) { /* without FMA, sums have other bits */
            free(once);
            once = NULL;
        }
    }
    free(once), free(before), free(bias), free(g.a.data), free(g.b.data);
}

TEST_LOOP(epilogues_and_bits, 0, 2 * SHAPES)
{
    const shape *s = &shapes[_i / 2];
    const int64_t work = s->batch * s->n * s->m * s->k;
    const int sparse = work > 100000000 ? 4 * C_FORMS : work > 500000 ? 3 : 1;
    for (int form = _i % sparse; form < 4 * C_FORMS; form += sparse)
        check(s, _i % 2 ? EK_F64 : EK_F32, form, form % 3 ? (form + _i / 2) % 3 : 1,
              (form / 3 + _i) % 2);
}

/* Rows of a that threads pack together form two parts, of which the last has fewer panels of rows
 * than a part has tiles. */
TEST(tiles_without_rows)
{
    enum { THREADS = 24, ROUNDS = 300 };
    const shape s = {1, 2048, 384, 512, false};
    ek_gemm g = describe(&s, EK_F32, 1);
    const size_t nbytes = sizeof(float) * (size_t)c_nelements(&s);
    g.a.data = random_elements(EK_F32, s.n * s.k, 1);
    g.b.data = random_elements(EK_F32, s.k * s.m, 2);
    void *before = random_elements(EK_F32, c_nelements(&s), 3);
    void *once = computed(case_device(1), g, &s, before, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        void *sums = computed(case_device(THREADS), g, &s, before, NULL);
        ck_assert_int_eq(memcmp(sums, once, nbytes), 0);
        free(sums);
    }
    free(once), free(before), free(g.a.data), free(g.b.data);
}
