/* recurrent.c: a step of recurrent networks and its gradient, one pass over memory. */
#include "kernels/recurrent.h"

#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { RECURRENT_GRAIN = 4096, RECURRENT_OPERANDS = 15 };

/* Computes n elements. p has the operands' contiguous runs, those of outputs first. */
typedef void recurrent_body(int64_t n, void *const *p);

typedef struct recurrent_operand {
    char *data;            /* NULL: zeros */
    int64_t width, column; /* elements of a row, and where the operand begins in a row */
} recurrent_operand;

typedef struct recurrent_job {
    ek_dtype dtype;
    int64_t hidden;
    int outputs, count;
    recurrent_operand operand[RECURRENT_OPERANDS];
    recurrent_body *body;
} recurrent_job;

#define RECURRENT_BODIES(type, suffix)                                                           \
    EK_MULTIVERSION                                                                              \
    static void lstm_forward_##suffix(int64_t n, void *const *p)                                 \
    {                                                                                            \
        type *restrict h = p[0], *restrict c = p[1], *restrict i = p[2], *restrict f = p[3],     \
                       *restrict g = p[4], *restrict o = p[5];                                   \
        const type *xi = p[6], *xf = p[7], *xg = p[8], *xo = p[9];                               \
        const type *ri = p[10], *rf = p[11], *rg = p[12], *ro = p[13], *before = p[14];          \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            ek_lstm_##suffix(xi[k] + ri[k], xf[k] + rf[k], xg[k] + rg[k], xo[k] + ro[k],         \
                             before[k], &i[k], &f[k], &g[k], &o[k], &c[k], &h[k]);               \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void lstm_gradient_##suffix(int64_t n, void *const *p)                                \
    {                                                                                            \
        type *di = p[0], *df = p[1], *dg = p[2], *d_o = p[3]; /* may be i, f, g and o */         \
        type *restrict dbefore = p[4];                                                           \
        const type *dh = p[5], *more = p[6], *dc = p[7], *i = p[8], *f = p[9], *g = p[10];       \
        const type *o = p[11], *before = p[12], *c = p[13];                                      \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            ek_lstm_gradient_##suffix(dh[k] + more[k], dc[k], i[k], f[k], g[k], o[k], before[k], \
                                      c[k], &di[k], &df[k], &dg[k], &d_o[k], &dbefore[k]);       \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void gru_forward_##suffix(int64_t n, void *const *p)                                  \
    {                                                                                            \
        type *restrict h = p[0], *restrict r = p[1], *restrict z = p[2], *restrict new = p[3],   \
                       *restrict kept = p[4];                                                    \
        const type *xr = p[5], *xz = p[6], *xn = p[7], *pr = p[8], *pz = p[9], *pn = p[10];      \
        const type *before = p[11];                                                              \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++) {                                                        \
            kept[k] = pn[k];                                                                     \
            ek_gru_##suffix(xr[k] + pr[k], xz[k] + pz[k], xn[k], pn[k], before[k], &r[k], &z[k], \
                            &new[k], &h[k]);                                                     \
        }                                                                                        \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void gru_gradient_##suffix(int64_t n, void *const *p)                                 \
    {                                                                                            \
        type *restrict dr = p[0], *restrict dz = p[1], *restrict dn = p[2];                      \
        type *restrict other_dr = p[3], *restrict other_dz = p[4], *restrict dkept = p[5],       \
                       *restrict dbefore = p[6];                                                 \
        const type *dh = p[7], *more = p[8], *r = p[9], *z = p[10], *new = p[11];                \
        const type *kept = p[12], *before = p[13];                                               \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++) {                                                        \
            ek_gru_gradient_##suffix(dh[k] + more[k], r[k], z[k], new[k], kept[k], before[k],    \
                                     &dr[k], &dz[k], &dn[k], &dkept[k], &dbefore[k]);            \
            other_dr[k] = dr[k], other_dz[k] = dz[k];                                            \
        }                                                                                        \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void tanh_forward_##suffix(int64_t n, void *const *p)                                 \
    {                                                                                            \
        type *restrict h = p[0];                                                                 \
        const type *x = p[1], *product = p[2];                                                   \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            h[k] = ek_unary_TANH_##suffix(x[k] + product[k], 0, 0);                              \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void relu_forward_##suffix(int64_t n, void *const *p)                                 \
    {                                                                                            \
        type *restrict h = p[0];                                                                 \
        const type *x = p[1], *product = p[2];                                                   \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            h[k] = ek_unary_RELU_##suffix(x[k] + product[k], 0, 0);                              \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void tanh_gradient_##suffix(int64_t n, void *const *p)                                \
    {                                                                                            \
        type *restrict dx = p[0];                                                                \
        const type *dh = p[1], *more = p[2], *h = p[3];                                          \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            dx[k] = ek_rnn_gradient_##suffix(dh[k] + more[k], h[k], false);                      \
    }                                                                                            \
    EK_MULTIVERSION                                                                              \
    static void relu_gradient_##suffix(int64_t n, void *const *p)                                \
    {                                                                                            \
        type *restrict dx = p[0];                                                                \
        const type *dh = p[1], *more = p[2], *h = p[3];                                          \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            dx[k] = ek_rnn_gradient_##suffix(dh[k] + more[k], h[k], true);                       \
    }
RECURRENT_BODIES(float, f32)
RECURRENT_BODIES(double, f64)

/* The bodies by ek_recurrent_cell, for f32 and f64. */
static recurrent_body *const recurrent_forwards[][2] = {{tanh_forward_f32, tanh_forward_f64},
                                                        {relu_forward_f32, relu_forward_f64},
                                                        {lstm_forward_f32, lstm_forward_f64},
                                                        {gru_forward_f32, gru_forward_f64}};
static recurrent_body *const recurrent_gradients[][2] = {{tanh_gradient_f32, tanh_gradient_f64},
                                                         {relu_gradient_f32, relu_gradient_f64},
                                                         {lstm_gradient_f32, lstm_gradient_f64},
                                                         {gru_gradient_f32, gru_gradient_f64}};

static void recurrent_run(void *context, int64_t begin, int64_t end)
{
    static const ek_tile zeros;
    const recurrent_job *job = context;
    const bool converts = job->dtype != EK_F32 && job->dtype != EK_F64; /* computed in f32 */
    const int64_t size = (int64_t)ek_dtype_size(job->dtype);
    ek_tile tiles[RECURRENT_OPERANDS];
    while (begin < end) {
        const int64_t row = begin / job->hidden, column = begin % job->hidden;
        int64_t n = ek_smaller(ek_smaller(end - begin, job->hidden - column), EK_TILE);
        void *address[RECURRENT_OPERANDS], *p[RECURRENT_OPERANDS];
        for (int k = 0; k < job->count; k++) {
            const recurrent_operand *x = &job->operand[k];
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

/* Appends the parts of a tensor (N, parts H), each as an operand (N, H). The tensor may be NULL,
 * which counts as zeros. */
static void recurrent_add(recurrent_job *job, const ek_tensor *tensor, int parts)
{
    for (int k = 0; k < parts; k++)
        job->operand[job->count++] = (recurrent_operand){tensor ? ek_tensor_address(tensor) : NULL,
                                                         parts * job->hidden, k * job->hidden};
}

/* Does what recurrent_add does if the tensor isn't NULL. If it is NULL, the cell doesn't have
 * it. */
static void recurrent_add_if(recurrent_job *job, const ek_tensor *tensor, int parts)
{
    if (tensor)
        recurrent_add(job, tensor, parts);
}

int ek_host_recurrent_forward(ek_dev *dev, ek_tensor *h, ek_recurrent_cell cell, ek_tensor *c,
                              ek_tensor *gates, const ek_tensor *x, const ek_tensor *product,
                              const ek_tensor *before)
{
    recurrent_job job = {.dtype = h->dtype,
                         .hidden = h->shape[1],
                         .body = recurrent_forwards[cell][h->dtype == EK_F64]};
    const int parts = (int)(x->shape[1] / job.hidden);
    recurrent_add(&job, h, 1);
    recurrent_add_if(&job, c, 1);
    recurrent_add_if(&job, gates, 4);
    job.outputs = job.count;
    recurrent_add(&job, x, parts);
    recurrent_add(&job, product, parts);
    recurrent_add_if(&job, before, 1);
    ek_parallel_for(dev, ek_count(h), RECURRENT_GRAIN, recurrent_run, &job);
    return 0;
}

int ek_host_recurrent_gradient(ek_dev *dev, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dproduct, ek_tensor *dbefore, const ek_tensor *dh,
                               const ek_tensor *more, const ek_tensor *dc, const ek_tensor *gates,
                               const ek_tensor *before, const ek_tensor *c)
{
    const int kept = before ? 4 : 1; /* parts of `gates` */
    recurrent_job job = {.dtype = dx->dtype,
                         .hidden = gates->shape[1] / kept,
                         .body = recurrent_gradients[cell][dx->dtype == EK_F64]};
    const int parts = (int)(dx->shape[1] / job.hidden);
    recurrent_add(&job, dx, parts);
    recurrent_add_if(&job, dproduct, parts);
    recurrent_add_if(&job, dbefore, 1);
    job.outputs = job.count;
    recurrent_add(&job, dh, 1);
    recurrent_add(&job, more, 1);
    if (cell == EK_CELL_LSTM)
        recurrent_add(&job, dc, 1);
    recurrent_add(&job, gates, kept);
    recurrent_add_if(&job, before, 1);
    recurrent_add_if(&job, c, 1);
    ek_parallel_for(dev, ek_count(dx) / parts, RECURRENT_GRAIN, recurrent_run, &job);
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
