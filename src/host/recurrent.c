/* recurrent.c: a step of recurrent networks and its gradient, one pass over memory; and all steps
 * of a layer's direction.
 *
 * For all steps weight_hh is packed once, and one parallel region follows. Products are added to
 * the gates' sums in place, a few rows at a time, and the gates are computed while these lie in
 * cache. If there are enough samples, each thread computes all steps of some of them, and waits for
 * no other thread. Otherwise each thread computes some of the units, whose weights stay in its
 * cache, and all threads wait for each other after each step. */
#include "kernels/recurrent.h"

#include <stdatomic.h>
#include <string.h>

#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { RECURRENT_GRAIN = 4096, RECURRENT_OPERANDS = 15 };

/* Computes n elements. p has the operands' contiguous runs, those of outputs first. Outputs may be
 * inputs. */
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
        type *h = p[0], *c = p[1], *i = p[2], *f = p[3], *g = p[4], *o = p[5];                   \
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
        type *di = p[0], *df = p[1], *dg = p[2], *d_o = p[3];                                    \
        type *dbefore = p[4];                                                                    \
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
        type *h = p[0], *r = p[1], *z = p[2], *new = p[3], *kept = p[4];                         \
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
        type *dr = p[0], *dz = p[1], *dn = p[2], *dkept = p[3], *dbefore = p[4];                 \
        const type *dh = p[5], *more = p[6], *r = p[7], *z = p[8], *new = p[9], *kept = p[10];   \
        const type *before = p[11];                                                              \
        EK_IVDEP                                                                                 \
        for (int64_t k = 0; k < n; k++)                                                          \
            ek_gru_gradient_##suffix(dh[k] + more[k], r[k], z[k], new[k], kept[k], before[k],    \
                                     &dr[k], &dz[k], &dn[k], &dkept[k], &dbefore[k]);            \
    }
RECURRENT_BODIES(float, f32)
RECURRENT_BODIES(double, f64)

#define RECURRENT_RNN_BODIES(type, suffix, name, NAME, relu)               \
    EK_MULTIVERSION                                                        \
    static void name##_forward_##suffix(int64_t n, void *const *p)         \
    {                                                                      \
        type *h = p[0];                                                    \
        const type *x = p[1], *product = p[2];                             \
        EK_IVDEP                                                           \
        for (int64_t k = 0; k < n; k++)                                    \
            h[k] = ek_unary_##NAME##_##suffix(x[k] + product[k], 0, 0);    \
    }                                                                      \
    EK_MULTIVERSION                                                        \
    static void name##_gradient_##suffix(int64_t n, void *const *p)        \
    {                                                                      \
        type *dx = p[0];                                                   \
        const type *dh = p[1], *more = p[2], *h = p[3];                    \
        EK_IVDEP                                                           \
        for (int64_t k = 0; k < n; k++)                                    \
            dx[k] = ek_rnn_gradient_##suffix(dh[k] + more[k], h[k], relu); \
    }
RECURRENT_RNN_BODIES(float, f32, tanh, TANH, false)
RECURRENT_RNN_BODIES(double, f64, tanh, TANH, false)
RECURRENT_RNN_BODIES(float, f32, relu, RELU, true)
RECURRENT_RNN_BODIES(double, f64, relu, RELU, true)

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

/* Returns the address of step t of a tensor (L, N, W); steps use the tensor's rows in turn. Other
 * tensors have one step. */
static char *recurrent_at(const ek_tensor *x, int64_t t)
{
    const int64_t step = x->ndim == 3 ? t % x->shape[0] * x->stride[0] : 0;
    return (char *)ek_tensor_address(x) + step * (int64_t)ek_dtype_size(x->dtype);
}

/* Appends the parts of the rows of a tensor at step t, each as an operand (N, H). A vector is one
 * row for all samples. The tensor may be NULL, which counts as zeros. */
static void recurrent_add(recurrent_job *job, const ek_tensor *x, int64_t t, int parts)
{
    for (int k = 0; k < parts; k++)
        job->operand[job->count++] =
            (recurrent_operand){x ? recurrent_at(x, t) : NULL,
                                x && x->ndim > 1 ? x->stride[x->ndim - 2] : 0, k * job->hidden};
}

static int recurrent_parts(ek_recurrent_cell cell)
{
    return cell == EK_CELL_LSTM ? 4 : cell == EK_CELL_GRU ? 3 : 1;
}

/* The operands of ek_host_recurrent_forward, of step t of several. The states of step t are at
 * `from` before it and at `to` after it. */
static recurrent_job recurrent_forward_of(ek_recurrent_cell cell, const ek_tensor *h,
                                          const ek_tensor *c, const ek_tensor *gates,
                                          const ek_tensor *x, const ek_tensor *product,
                                          const ek_tensor *before, int64_t t, int64_t from,
                                          int64_t to)
{
    recurrent_job job = {.dtype = h->dtype,
                         .hidden = h->shape[h->ndim - 1],
                         .body = recurrent_forwards[cell][h->dtype == EK_F64]};
    recurrent_add(&job, h, to, 1);
    if (c)
        recurrent_add(&job, c, to, 1);
    if (gates)
        recurrent_add(&job, gates, t, 4);
    job.outputs = job.count;
    recurrent_add(&job, x, t, recurrent_parts(cell));
    recurrent_add(&job, product, t, recurrent_parts(cell));
    if (before)
        recurrent_add(&job, before, from, 1);
    return job;
}

int ek_host_recurrent_forward(ek_dev *dev, ek_tensor *h, ek_recurrent_cell cell, ek_tensor *c,
                              ek_tensor *gates, const ek_tensor *x, const ek_tensor *product,
                              const ek_tensor *before)
{
    recurrent_job job = recurrent_forward_of(cell, h, c, gates, x, product, before, 0, 0, 0);
    ek_parallel_for(dev, ek_count(h), RECURRENT_GRAIN, recurrent_run, &job);
    return 0;
}

/* The operands of ek_host_recurrent_gradient, of step t of several. If `gates` is h, it is the
 * state after the step. */
static recurrent_job recurrent_gradient_of(ek_tensor *dx, ek_recurrent_cell cell,
                                           ek_tensor *dbefore, const ek_tensor *dh,
                                           const ek_tensor *more, const ek_tensor *dc,
                                           const ek_tensor *gates, const ek_tensor *before,
                                           const ek_tensor *c, int64_t t, int64_t from, int64_t to)
{
    const int kept = before ? 4 : 1; /* parts of `gates` and dx */
    recurrent_job job = {.dtype = dx->dtype,
                         .hidden = gates->shape[gates->ndim - 1] / kept,
                         .body = recurrent_gradients[cell][dx->dtype == EK_F64]};
    recurrent_add(&job, dx, t, kept);
    if (dbefore)
        recurrent_add(&job, dbefore, 0, 1);
    job.outputs = job.count;
    recurrent_add(&job, dh, t, 1);
    recurrent_add(&job, more, 0, 1);
    if (cell == EK_CELL_LSTM)
        recurrent_add(&job, dc, 0, 1);
    recurrent_add(&job, gates, before ? t : to, kept);
    if (before)
        recurrent_add(&job, before, from, 1);
    if (c)
        recurrent_add(&job, c, to, 1);
    return job;
}

int ek_host_recurrent_gradient(ek_dev *dev, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                               const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                               const ek_tensor *c)
{
    recurrent_job job =
        recurrent_gradient_of(dx, cell, dbefore, dh, more, dc, gates, before, c, 0, 0, 0);
    ek_parallel_for(dev, dx->shape[0] * job.hidden, RECURRENT_GRAIN, recurrent_run, &job);
    return 0;
}

/* ---- all steps ---- */

enum {
    RECURRENT_CACHE = 1 << 20, /* Smaller packed weights may be read by each thread. */
    RECURRENT_READS = 64,      /* With fewer samples of all steps, packing doesn't pay. */
    RECURRENT_WORK = 1 << 17,  /* Multiplications that are worth a thread. */
    RECURRENT_PIECES = 256
};

/* A round is the steps that a thread computes without waiting for other threads: all steps of some
 * rows, or one step of some panels of units. Pieces of a round are independent of each other. */
typedef struct recurrent_sequence {
    const ek_recurrent_steps *call;
    const ek_recurrent_steps_back *back; /* NULL: the forward */
    const ek_gemm_kernel *kernel;
    int64_t size; /* Bytes of an element. */
    int64_t steps, samples, hidden, parts;
    int64_t count; /* Steps and, backward, the product that gives the first state's gradient. */
    char *packed;
    int64_t panels, panel_nbytes, depth; /* Panels of H columns, of `depth` rows each. */
    bool by_rows;
    int64_t rounds, pieces;
    _Atomic int64_t next_thread, done;       /* `done` counts pieces of all rounds. */
    _Atomic int64_t taken[RECURRENT_PIECES]; /* How many rounds of a piece threads have taken. */
} recurrent_sequence;

/* Packs panels [begin, end): for the forward those of the gates of some units, one after another,
 * for the gradient of h those of its columns. */
static void recurrent_pack(void *context, int64_t begin, int64_t end)
{
    const recurrent_sequence *s = context;
    const ek_tensor *w = s->call->weight;
    const bool back = s->back != NULL;
    const int width = s->kernel->columns;
    const int64_t parts = back ? 1 : s->parts, along = w->stride[back], across = w->stride[!back];
    for (int64_t i = begin; i < end; i++) {
        const int64_t unit = i / parts * width, lines = ek_smaller(width, s->hidden - unit);
        void *to = s->packed + i * s->panel_nbytes;
        const void *from =
            (const char *)ek_tensor_address(w) + (i % parts * s->hidden + unit) * along * s->size;
        if (s->size == sizeof(float))
            ek_gemm_pack_f32(to, from, lines, s->depth, width, along, across);
        else
            ek_gemm_pack_f64(to, from, lines, s->depth, width, along, across);
    }
}

/* Adds a (rows, depth) times rows [first, first + depth) of a panel to `columns` columns of c, or
 * writes the product. Strides count elements. */
static void recurrent_multiply(const recurrent_sequence *s, const char *a, int64_t a_row,
                               int64_t panel, int64_t first, int64_t depth, char *c, int64_t c_row,
                               int64_t rows, int64_t columns, bool add)
{
    const ek_gemm_kernel *kernel = s->kernel;
    const int64_t width = kernel->columns, size = s->size, block = EK_GEMM_BLOCK_NBYTES / size;
    const int64_t vectors = 2 * columns > width ? 2 : 1, whole = vectors * width / 2 == columns;
    const int64_t tiles = ek_divide_up(rows, kernel->rows);
    const char *b = s->packed + panel * s->panel_nbytes + first * width * size;
    _Alignas(64) char tile[EK_GEMM_ROWS * EK_GEMM_COLUMNS * sizeof(double)];
    if (!whole) /* The kernel reads whole vectors. */
        memset(tile, 0, sizeof tile);
    /* The next panel is prefetched. */
    ek_gemm_ahead none = {.runs = 0}, next = {.run = b + s->panel_nbytes,
                                              .lines = depth * width * size / 64,
                                              .runs = 1};
    next.pace = 1 + next.lines * EK_GEMM_STRETCH / (tiles * depth);
    for (int64_t k = 0; k < depth; k += block)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t row = ek_part_of(rows, i, tiles),
                          n = ek_part_of(rows, i + 1, tiles) - row;
            char *to = c + row * c_row * size;
            const bool adds = add || k > 0;
            const ek_gemm_call call = {.k = ek_smaller(block, depth - k),
                                       .a = a + (row * a_row + k) * size,
                                       .a_row = a_row,
                                       .a_depth = 1,
                                       .b = b + k * width * size,
                                       .b_depth = width,
                                       .c = whole ? to : tile,
                                       .c_row = whole ? c_row : width,
                                       .add = adds,
                                       .next_a = &none,
                                       .next_b = &next};
            for (int64_t r = 0; !whole && adds && r < n; r++)
                memcpy(tile + r * width * size, to + r * c_row * size, (size_t)(columns * size));
            kernel->inner[vectors - 1][n - 1](&call);
            for (int64_t r = 0; !whole && r < n; r++)
                memcpy(to + r * c_row * size, tile + r * width * size, (size_t)(columns * size));
        }
}

/* Adds the products of a step to the sums of gates. A GRU's product of n is not added but kept. */
static void recurrent_multiply_forward(const recurrent_sequence *s, int64_t t, int64_t row,
                                       int64_t rows, int64_t unit, int64_t columns)
{
    const ek_recurrent_steps *call = s->call;
    const int64_t hidden = s->hidden, size = s->size;
    const char *a = recurrent_at(call->h, t + call->reverse) + row * hidden * size;
    for (int64_t part = 0; part < s->parts; part++) {
        const bool kept = part == 2 && call->cell == EK_CELL_GRU;
        const ek_tensor *to = kept ? call->gates : call->sums;
        const int64_t c_row = to->shape[2], column = (part + kept) * hidden + unit;
        char *c = recurrent_at(to, t) + (row * c_row + column) * size;
        const char *bias = kept && call->bias ? ek_tensor_address(call->bias) : NULL;
        for (int64_t i = 0; bias && i < rows; i++)
            memcpy(c + i * c_row * size, bias + (part * hidden + unit) * size,
                   (size_t)(columns * size));
        recurrent_multiply(s, a, hidden, unit / s->kernel->columns * s->parts + part, 0, hidden, c,
                           c_row, rows, columns, !kept || bias);
    }
}

/* Computes the gradient of the state before step t from those of the step's sums. In a GRU it is
 * added to what passes the gates. */
static void recurrent_multiply_back(const recurrent_sequence *s, int64_t t, int64_t row,
                                    int64_t rows, int64_t unit, int64_t columns)
{
    const int64_t hidden = s->hidden, size = s->size, a_row = s->back->dx->shape[2];
    const bool gru = s->call->cell == EK_CELL_GRU;
    const int64_t depth = s->depth - gru * hidden, panel = unit / s->kernel->columns;
    const char *a = recurrent_at(s->back->dx, t) + row * a_row * size;
    char *c = recurrent_at(s->back->dh, 0) + (row * hidden + unit) * size;
    recurrent_multiply(s, a, a_row, panel, 0, depth, c, hidden, rows, columns, gru);
    if (gru)
        recurrent_multiply(s, a + 3 * hidden * size, a_row, panel, depth, hidden, c, hidden, rows,
                           columns, true);
}

/* Describes the gates of step t or their gradients. */
static recurrent_job recurrent_job_of(const recurrent_sequence *s, int64_t t)
{
    const ek_recurrent_steps *call = s->call;
    const ek_recurrent_steps_back *back = s->back;
    const bool lstm = call->cell == EK_CELL_LSTM, gru = call->cell == EK_CELL_GRU;
    const int64_t from = t + call->reverse, to = t + !call->reverse;
    const ek_tensor *before = lstm ? call->c : gru ? call->h : NULL;
    if (back)
        return recurrent_gradient_of(back->dx, call->cell,
                                     lstm  ? back->dc
                                     : gru ? back->dh
                                           : NULL,
                                     back->dy, back->dh, back->dc, before ? call->gates : call->h,
                                     before, call->c, t, from, to);
    recurrent_job job = recurrent_forward_of(call->cell, call->h, call->c, call->gates, call->sums,
                                             call->bias, before, t, from, to);
    if (gru) /* the n of product, which has its bias */
        job.operand[job.count - 2] = job.operand[4];
    return job;
}

/* Computes step i, in the order of computation, of some rows and panels. */
static void recurrent_step(const recurrent_sequence *s, int64_t i, int64_t row, int64_t rows,
                           int64_t panel, int64_t panel_end)
{
    const bool forward = !s->back;
    const int64_t width = s->kernel->columns, begin = panel * width,
                  end = ek_smaller(panel_end * width, s->hidden);
    /* Backward, the product is that of the step before. */
    const int64_t at = forward ? i : i - 1;
    for (int64_t unit = begin; unit < end && at >= 0; unit += width) {
        const int64_t t = s->call->reverse == forward ? s->steps - 1 - at : at;
        (forward ? recurrent_multiply_forward
                 : recurrent_multiply_back)(s, t, row, rows, unit, ek_smaller(width, end - unit));
    }
    if (i == s->steps)
        return;
    recurrent_job job = recurrent_job_of(s, s->call->reverse == forward ? s->steps - 1 - i : i);
    for (int64_t r = row; r < row + rows; r++)
        recurrent_run(&job, r * s->hidden + begin, r * s->hidden + end);
}

/* Goes through the rounds. A thread computes its own piece, if no other thread has taken it, and
 * then those that no thread has taken. So a round is waited for only when its pieces are taken. */
static void recurrent_rounds(void *context, int64_t begin, int64_t end)
{
    recurrent_sequence *s = context;
    (void)begin, (void)end;
    const int64_t own = atomic_fetch_add(&s->next_thread, 1),
                  all = s->by_rows ? s->samples : s->panels;
    for (int64_t round = 0; round < s->rounds; round++) {
        ek_parallel_wait(&s->done, round * s->pieces);
        for (int64_t i = 0; i < s->pieces; i++) {
            const int64_t piece = (own + i) % s->pieces;
            int64_t taken = round;
            if (!atomic_compare_exchange_strong(&s->taken[piece], &taken, round + 1))
                continue;
            const int64_t first = ek_part_of(all, piece, s->pieces),
                          last = ek_part_of(all, piece + 1, s->pieces);
            if (!s->by_rows)
                recurrent_step(s, round, 0, s->samples, first, last);
            for (int64_t step = 0; s->by_rows && step < s->count; step++)
                recurrent_step(s, step, first, last - first, 0, s->panels);
            atomic_fetch_add(&s->done, 1);
        }
    }
}

/* Chooses the pieces. */
static void recurrent_cut(recurrent_sequence *s, int threads)
{
    const int64_t rows = s->kernel->rows, weights = s->hidden * s->hidden * s->parts,
                  each = ek_larger(1, ek_smaller(threads, RECURRENT_PIECES / 4));
    const bool cached = weights * s->size <= RECURRENT_CACHE;
    s->by_rows = each == 1 || s->samples >= (cached ? 2 : 4) * each * rows ||
                 s->samples * weights < RECURRENT_WORK;
    /* Several pieces for each thread balance threads that the system disturbs. */
    const int64_t several = ek_larger(1, ek_smaller(s->samples / (3 * rows * each), 4));
    s->pieces = ek_smaller(each * (s->by_rows ? several : 1), s->by_rows ? s->samples : s->panels);
    s->rounds = s->by_rows ? 1 : s->count;
}

/* Computes all steps. Returns 1; 0 if steps have to be computed one by one. */
static int recurrent_sequence_run(ek_dev *dev, recurrent_sequence *s)
{
    const ek_tensor *h = s->call->h;
    s->size = (int64_t)ek_dtype_size(h->dtype);
    s->steps = h->shape[0] - 1;
    s->samples = h->shape[1];
    s->hidden = h->shape[2];
    if ((h->dtype != EK_F32 && h->dtype != EK_F64) || s->steps * s->samples < RECURRENT_READS ||
        (s->call->bias && s->call->bias->stride[0] != 1))
        return 0;
    s->parts = recurrent_parts(s->call->cell);
    s->kernel = ek_gemm_kernel_best(h->dtype);
    s->panels = ek_divide_up(s->hidden, s->kernel->columns);
    s->depth = s->back ? s->parts * s->hidden : s->hidden;
    s->panel_nbytes = s->kernel->columns * s->depth * s->size;
    for (int i = 0; s->back && i < 2; i++) {
        ek_tensor *to = i ? s->back->dc : s->back->dh;
        const ek_tensor *last = i ? s->back->dc_n : s->back->dh_n;
        if (to)
            EK_TRY(last ? ek_host_copy(dev, to, last) : ek_host_fill(dev, to, 0));
    }
    const int64_t all = s->back ? s->panels : s->parts * s->panels;
    const size_t nbytes = (size_t)(all * s->panel_nbytes);
    void *packed;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &packed));
    s->packed = packed;
    recurrent_cut(s, ek_parallel_threads(dev));
    ek_parallel_for(dev, all, 1 + 65536 / (s->panel_nbytes + 1), recurrent_pack, s);
    const int64_t work = s->count * s->samples * s->hidden * s->depth / s->pieces;
    ek_parallel_for(dev, s->pieces, 1 + RECURRENT_WORK / (work + 1), recurrent_rounds, s);
    ek_dev_free(dev, packed, nbytes, EK_MEMORY_WORKSPACE);
    return 1;
}

int ek_host_recurrent_steps(ek_dev *dev, const ek_recurrent_steps *steps)
{
    recurrent_sequence s = {.call = steps, .count = steps->h->shape[0] - 1};
    return recurrent_sequence_run(dev, &s);
}

int ek_host_recurrent_steps_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                     const ek_recurrent_steps_back *back)
{
    recurrent_sequence s = {.call = steps, .back = back};
    s.count = steps->h->shape[0] - 1 + back->wants_h;
    return recurrent_sequence_run(dev, &s);
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
