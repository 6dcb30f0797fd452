/* recurrent.c: a step of an LSTM and its gradient, one pass over memory. */
#include "kernels/recurrent.h"

#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { LSTM_GRAIN = 4096, LSTM_OPERANDS = 15 };

/* Computes n elements; operands are contiguous runs, outputs first. */
typedef void lstm_body(int64_t n, void *const *p);

typedef struct lstm_operand {
    char *data;            /* NULL: zeros */
    int64_t width, column; /* of a row, and where the operand begins in it */
} lstm_operand;

typedef struct lstm_job {
    ek_dtype dtype;
    int64_t hidden;
    int outputs, count;
    lstm_operand operand[LSTM_OPERANDS];
    lstm_body *body;
} lstm_job;

#define LSTM_BODIES(type, suffix)                                                                 \
    EK_MULTIVERSION                                                                               \
    static void lstm_forward_##suffix(int64_t n, void *const *p)                                  \
    {                                                                                             \
        type *restrict h = p[0], *restrict c = p[1], *restrict i = p[2], *restrict f = p[3],      \
                       *restrict g = p[4], *restrict o = p[5];                                    \
        const type *xi = p[6], *xf = p[7], *xg = p[8], *xo = p[9];                                \
        const type *ri = p[10], *rf = p[11], *rg = p[12], *ro = p[13], *before = p[14];           \
        EK_IVDEP                                                                                  \
        for (int64_t k = 0; k < n; k++)                                                           \
            ek_lstm_##suffix(xi[k] + ri[k], xf[k] + rf[k], xg[k] + rg[k], xo[k] + ro[k],          \
                             before[k], &i[k], &f[k], &g[k], &o[k], &c[k], &h[k]);                \
    }                                                                                             \
    EK_MULTIVERSION                                                                               \
    static void lstm_gradient_##suffix(int64_t n, void *const *p)                                 \
    {                                                                                             \
        type *restrict di = p[0], *restrict df = p[1], *restrict dg = p[2], *restrict d_o = p[3], \
                       *restrict dbefore = p[4];                                                  \
        const type *dh = p[5], *dc = p[6], *i = p[7], *f = p[8], *g = p[9], *o = p[10];           \
        const type *before = p[11], *c = p[12];                                                   \
        EK_IVDEP                                                                                  \
        for (int64_t k = 0; k < n; k++)                                                           \
            ek_lstm_gradient_##suffix(dh[k], dc[k], i[k], f[k], g[k], o[k], before[k], c[k],      \
                                      &di[k], &df[k], &dg[k], &d_o[k], &dbefore[k]);              \
    }
LSTM_BODIES(float, f32)
LSTM_BODIES(double, f64)

static void lstm_run(void *context, int64_t begin, int64_t end)
{
    static const ek_tile zeros;
    const lstm_job *job = context;
    const bool converts = job->dtype != EK_F32 && job->dtype != EK_F64; /* computed in f32 */
    const int64_t size = (int64_t)ek_dtype_size(job->dtype);
    ek_tile tiles[LSTM_OPERANDS];
    while (begin < end) {
        const int64_t row = begin / job->hidden, column = begin % job->hidden;
        int64_t n = ek_smaller(ek_smaller(end - begin, job->hidden - column), EK_TILE);
        void *address[LSTM_OPERANDS], *p[LSTM_OPERANDS];
        for (int k = 0; k < job->count; k++) {
            const lstm_operand *x = &job->operand[k];
            address[k] =
                x->data ? x->data + (row * x->width + x->column + column) * size : (void *)&zeros;
            p[k] = converts && x->data ? &tiles[k] : address[k];
            if (converts && x->data && k >= job->outputs)
                ek_row_load(EK_CLASS_F32, p[k], job->dtype, address[k], 1, n);
        }
        job->body(n, p);
        for (int k = 0; converts && k < job->outputs; k++)
            ek_row_store(EK_CLASS_F32, p[k], job->dtype, address[k], 1, n);
        begin += n;
    }
}

/* Appends a tensor (N, H), which may be NULL, or the four parts of one that is (N, 4 H). */
static void lstm_add(lstm_job *job, const ek_tensor *tensor, int parts)
{
    for (int k = 0; k < parts; k++)
        job->operand[job->count++] = (lstm_operand){tensor ? ek_tensor_address(tensor) : NULL,
                                                    parts * job->hidden, k * job->hidden};
}

int ek_host_lstm_forward(ek_dev *dev, ek_tensor *h, ek_tensor *c, ek_tensor *gates,
                         const ek_tensor *x, const ek_tensor *product, const ek_tensor *before)
{
    lstm_job job = {.dtype = h->dtype,
                    .hidden = h->shape[1],
                    .outputs = 6,
                    .body = h->dtype == EK_F64 ? lstm_forward_f64 : lstm_forward_f32};
    lstm_add(&job, h, 1);
    lstm_add(&job, c, 1);
    lstm_add(&job, gates, 4);
    lstm_add(&job, x, 4);
    lstm_add(&job, product, 4);
    lstm_add(&job, before, 1);
    ek_parallel_for(dev, ek_count(h), LSTM_GRAIN, lstm_run, &job);
    return 0;
}

int ek_host_lstm_gradient(ek_dev *dev, ek_tensor *dx, ek_tensor *dbefore, const ek_tensor *dh,
                          const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                          const ek_tensor *c)
{
    lstm_job job = {.dtype = c->dtype,
                    .hidden = c->shape[1],
                    .outputs = 5,
                    .body = c->dtype == EK_F64 ? lstm_gradient_f64 : lstm_gradient_f32};
    lstm_add(&job, dx, 4);
    lstm_add(&job, dbefore, 1);
    lstm_add(&job, dh, 1);
    lstm_add(&job, dc, 1);
    lstm_add(&job, gates, 4);
    lstm_add(&job, before, 1);
    lstm_add(&job, c, 1);
    ek_parallel_for(dev, ek_count(c), LSTM_GRAIN, lstm_run, &job);
    return 0;
}
