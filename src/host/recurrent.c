/* recurrent.c: a step of recurrent networks and its gradient, one pass over memory. */
#ifndef EK_REAL
#include "host/recurrent.h"

#include <string.h>

#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/recurrent.h"

enum { RECURRENT_GRAIN = 4096 };

#define EK_FOR_REALS "host/recurrent.c"
#include "kernels/for_reals.h"

/* The bodies by ek_recurrent_cell, for f32 and f64. */
static ek_recurrent_body *const recurrent_forwards[][2] = {{tanh_forward_f32, tanh_forward_f64},
                                                           {relu_forward_f32, relu_forward_f64},
                                                           {lstm_forward_f32, lstm_forward_f64},
                                                           {gru_forward_f32, gru_forward_f64}};
static ek_recurrent_body *const recurrent_gradients[][2] = {{tanh_gradient_f32, tanh_gradient_f64},
                                                            {relu_gradient_f32, relu_gradient_f64},
                                                            {lstm_gradient_f32, lstm_gradient_f64},
                                                            {gru_gradient_f32, gru_gradient_f64}};

void ek_recurrent_job_run(void *context, int64_t begin, int64_t end)
{
    static const ek_tile zeros;
    const ek_recurrent_job *job = context;
    const bool converts = job->dtype != EK_F32 && job->dtype != EK_F64; /* computed in f32 */
    const int64_t size = job->size;
    ek_tile tiles[EK_RECURRENT_OPERANDS];
    for (int64_t column = 0; column < job->columns; column += EK_TILE) {
        const int64_t n = ek_smaller(job->columns - column, EK_TILE);
        char *address[EK_RECURRENT_OPERANDS];
        void *p[EK_RECURRENT_OPERANDS];
        int64_t step[EK_RECURRENT_OPERANDS];
        for (int k = 0; k < job->count; k++) {
            const ek_recurrent_operand *x = &job->operand[k];
            step[k] = x->data ? x->width * size : 0;
            address[k] = x->data ? x->data + begin * step[k] + column * size : (char *)&zeros;
        }
        for (int64_t row = begin; row < end; row++) {
            for (int k = 0; k < job->count; k++) {
                const bool loads = converts && job->operand[k].data;
                p[k] = loads ? (void *)&tiles[k] : address[k];
                if (loads && k >= job->outputs)
                    ek_row_load(EK_CLASS_F32, p[k], job->dtype, address[k], 1, n);
            }
            job->body(n, p);
            for (int k = 0; converts && k < job->outputs; k++)
                ek_row_store(EK_CLASS_F32, p[k], job->dtype, address[k], 1, n);
            if (job->copy.data)
                memcpy(job->copy.data + (row * job->copy.width + column) * size, address[0],
                       (size_t)(n * size));
            for (int k = 0; k < job->count; k++)
                address[k] += step[k];
        }
    }
}

static void recurrent_run_rows(ek_dev *dev, ek_recurrent_job *job, int64_t rows)
{
    ek_parallel_for(dev, rows, 1 + RECURRENT_GRAIN / (job->columns + 1), ek_recurrent_job_run, job);
}

ek_recurrent_operand ek_recurrent_job_part(const ek_recurrent_job *job, const ek_tensor *x,
                                           int64_t t, int k)
{
    const int64_t width = x && x->ndim > 1 ? x->stride[x->ndim - 2] : 0,
                  at = job->row * width + k * job->hidden + job->column;
    return (ek_recurrent_operand){x ? ek_recurrent_at(x, t) + at * job->size : NULL, width};
}

/* Appends the first parts, each as an operand. */
static void recurrent_add(ek_recurrent_job *job, const ek_tensor *x, int64_t t, int parts)
{
    for (int k = 0; k < parts; k++)
        job->operand[job->count++] = ek_recurrent_job_part(job, x, t, k);
}

void ek_recurrent_job_forward(ek_recurrent_job *job, ek_recurrent_cell cell, const ek_tensor *h,
                              const ek_tensor *c, const ek_tensor *gates, const ek_tensor *x,
                              const ek_tensor *product, const ek_tensor *before, int64_t t,
                              int64_t from, int64_t to)
{
    const int parts = ek_recurrent_parts(cell);
    job->body = recurrent_forwards[cell][job->dtype == EK_F64];
    recurrent_add(job, h, to, 1);
    recurrent_add(job, c, to, c != NULL);
    recurrent_add(job, gates, t, parts > 1 ? EK_RECURRENT_GATES : 0);
    job->outputs = job->count;
    recurrent_add(job, x, t, parts);
    recurrent_add(job, product, t, parts);
    recurrent_add(job, before, from, before != NULL);
}

int ek_host_recurrent_forward(ek_dev *dev, ek_tensor *h, ek_recurrent_cell cell, ek_tensor *c,
                              ek_tensor *gates, const ek_tensor *x, const ek_tensor *product,
                              const ek_tensor *before)
{
    const int64_t hidden = h->shape[h->ndim - 1];
    ek_recurrent_job job = {.dtype = h->dtype,
                            .size = (int64_t)ek_dtype_size(h->dtype),
                            .hidden = hidden,
                            .columns = hidden};
    ek_recurrent_job_forward(&job, cell, h, c, gates, x, product, before, 0, 0, 0);
    recurrent_run_rows(dev, &job, h->shape[0]);
    return 0;
}

void ek_recurrent_job_gradient(ek_recurrent_job *job, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                               const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                               const ek_tensor *c, int64_t t, int64_t from, int64_t to)
{
    const int kept = before ? EK_RECURRENT_GATES : 1; /* parts of `gates` and dx */
    job->body = recurrent_gradients[cell][job->dtype == EK_F64];
    recurrent_add(job, dx, t, kept);
    recurrent_add(job, dbefore, 0, dbefore != NULL);
    job->outputs = job->count;
    recurrent_add(job, dh, t, 1);
    recurrent_add(job, more, 0, 1);
    recurrent_add(job, dc, 0, cell == EK_CELL_LSTM);
    recurrent_add(job, gates, before ? t : to, kept);
    recurrent_add(job, before, from, before != NULL);
    recurrent_add(job, c, to, c != NULL);
}

int ek_host_recurrent_gradient(ek_dev *dev, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                               const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                               const ek_tensor *c)
{
    const int64_t hidden = gates->shape[gates->ndim - 1] / (before ? EK_RECURRENT_GATES : 1);
    ek_recurrent_job job = {.dtype = dx->dtype,
                            .size = (int64_t)ek_dtype_size(dx->dtype),
                            .hidden = hidden,
                            .columns = hidden};
    ek_recurrent_job_gradient(&job, dx, cell, dbefore, dh, more, dc, gates, before, c, 0, 0, 0);
    recurrent_run_rows(dev, &job, dx->shape[0]);
    return 0;
}

/* The host has no library for whole networks. */
int ek_host_recurrent_network(ek_dev *dev, ek_recurrent_call *call, bool keeps)
{
    (void)dev, (void)call, (void)keeps;
    return 0;
}

int ek_host_recurrent_network_gradient(ek_dev *dev, const ek_recurrent_call *call,
                                       const ek_recurrent_back *back)
{
    (void)dev, (void)call, (void)back;
    return 0;
}

#else /* for each EK_REAL */

EK_MULTIVERSION
static void EK_NAME(lstm_forward)(int64_t n, void *const *p)
{
    EK_REAL *h = p[0], *c = p[1], *i = p[2], *f = p[3], *g = p[4], *o = p[5];
    const EK_REAL *xi = p[6], *xf = p[7], *xg = p[8], *xo = p[9];
    const EK_REAL *ri = p[10], *rf = p[11], *rg = p[12], *ro = p[13], *before = p[14];
    EK_IVDEP
    for (int64_t k = 0; k < n; k++)
        EK_NAME(ek_lstm)
    (xi[k] + ri[k], xf[k] + rf[k], xg[k] + rg[k], xo[k] + ro[k], before[k], &i[k], &f[k], &g[k],
     &o[k], &c[k], &h[k]);
}
EK_MULTIVERSION
static void EK_NAME(lstm_gradient)(int64_t n, void *const *p)
{
    EK_REAL *di = p[0], *df = p[1], *dg = p[2], *d_o = p[3];
    EK_REAL *dbefore = p[4];
    const EK_REAL *dh = p[5], *more = p[6], *dc = p[7], *i = p[8], *f = p[9], *g = p[10];
    const EK_REAL *o = p[11], *before = p[12], *c = p[13];
    EK_IVDEP
    for (int64_t k = 0; k < n; k++)
        EK_NAME(ek_lstm_gradient)
    (dh[k] + more[k], dc[k], i[k], f[k], g[k], o[k], before[k], c[k], &di[k], &df[k], &dg[k],
     &d_o[k], &dbefore[k]);
}
EK_MULTIVERSION
static void EK_NAME(gru_forward)(int64_t n, void *const *p)
{
    EK_REAL *h = p[0], *r = p[1], *z = p[2], *new = p[3], *kept = p[4];
    const EK_REAL *xr = p[5], *xz = p[6], *xn = p[7], *pr = p[8], *pz = p[9], *pn = p[10];
    const EK_REAL *before = p[11];
    EK_IVDEP
    for (int64_t k = 0; k < n; k++) {
        kept[k] = pn[k];
        EK_NAME(ek_gru)
        (xr[k] + pr[k], xz[k] + pz[k], xn[k], pn[k], before[k], &r[k], &z[k], &new[k], &h[k]);
    }
}
EK_MULTIVERSION
static void EK_NAME(gru_gradient)(int64_t n, void *const *p)
{
    EK_REAL *dr = p[0], *dz = p[1], *dn = p[2], *dkept = p[3], *dbefore = p[4];
    const EK_REAL *dh = p[5], *more = p[6], *r = p[7], *z = p[8], *new = p[9], *kept = p[10];
    const EK_REAL *before = p[11];
    EK_IVDEP
    for (int64_t k = 0; k < n; k++)
        EK_NAME(ek_gru_gradient)
    (dh[k] + more[k], r[k], z[k], new[k], kept[k], before[k], &dr[k], &dz[k], &dn[k], &dkept[k],
     &dbefore[k]);
}

#define RECURRENT_RNN(name, NAME, relu)                                    \
    EK_MULTIVERSION                                                        \
    static void EK_NAME(name##_forward)(int64_t n, void *const *p)         \
    {                                                                      \
        EK_REAL *h = p[0];                                                 \
        const EK_REAL *x = p[1], *product = p[2];                          \
        EK_IVDEP                                                           \
        for (int64_t k = 0; k < n; k++)                                    \
            h[k] = EK_NAME(ek_unary_##NAME)(x[k] + product[k], 0, 0);      \
    }                                                                      \
    EK_MULTIVERSION                                                        \
    static void EK_NAME(name##_gradient)(int64_t n, void *const *p)        \
    {                                                                      \
        EK_REAL *dx = p[0];                                                \
        const EK_REAL *dh = p[1], *more = p[2], *h = p[3];                 \
        EK_IVDEP                                                           \
        for (int64_t k = 0; k < n; k++)                                    \
            dx[k] = EK_NAME(ek_rnn_gradient)(dh[k] + more[k], h[k], relu); \
    }
RECURRENT_RNN(tanh, TANH, false)
RECURRENT_RNN(relu, RELU, true)
#undef RECURRENT_RNN

#endif
