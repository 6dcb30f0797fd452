/* recurrent.c: a step of recurrent networks and its gradient, one pass over memory; and all steps
 * of a layer's direction.
 *
 * For all steps the weights are packed once, and one parallel region follows. The forward computes
 * the sums of some rows and units of a step in a tile that stays in level 1 cache, the product of x
 * before that of h, and the gates from the tile. So the sums never travel to memory. The backward
 * computes the gradients of h and x from those of the sums, while these lie in cache. If there are
 * enough samples, each thread computes all steps of some of them, and waits for no other thread.
 * Otherwise each thread computes some of the units, whose weights stay in its cache, and all
 * threads wait for each other after each step. */
#include "kernels/recurrent.h"

#include <stdatomic.h>
#include <string.h>

#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { RECURRENT_GRAIN = 4096, RECURRENT_OPERANDS = 15, RECURRENT_GATES = 4 };

/* Computes n elements. p has the operands' contiguous runs, those of outputs first. Outputs may be
 * inputs. */
typedef void recurrent_body(int64_t n, void *const *p);

typedef struct recurrent_operand {
    char *data;    /* The first element of the first row; NULL: zeros. */
    int64_t width; /* Elements from one row to the next. */
} recurrent_operand;

/* Some columns of some rows of a step. */
typedef struct recurrent_job {
    ek_dtype dtype;
    int64_t size, hidden, row, column, columns;
    int outputs, count;
    recurrent_operand operand[RECURRENT_OPERANDS];
    recurrent_operand copy; /* Gets the first output, too, if it has data. */
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

/* Computes rows [begin, end), counted from the job's first row. */
static void recurrent_run(void *context, int64_t begin, int64_t end)
{
    static const ek_tile zeros;
    const recurrent_job *job = context;
    const bool converts = job->dtype != EK_F32 && job->dtype != EK_F64; /* computed in f32 */
    const int64_t size = job->size;
    ek_tile tiles[RECURRENT_OPERANDS];
    for (int64_t column = 0; column < job->columns; column += EK_TILE) {
        const int64_t n = ek_smaller(job->columns - column, EK_TILE);
        char *address[RECURRENT_OPERANDS];
        void *p[RECURRENT_OPERANDS];
        int64_t step[RECURRENT_OPERANDS];
        for (int k = 0; k < job->count; k++) {
            const recurrent_operand *x = &job->operand[k];
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

static void recurrent_run_rows(ek_dev *dev, recurrent_job *job, int64_t rows)
{
    ek_parallel_for(dev, rows, 1 + RECURRENT_GRAIN / (job->columns + 1), recurrent_run, job);
}

/* Returns the address of step t of a tensor (L, N, W); steps use the tensor's rows in turn. Other
 * tensors have one step. */
static char *recurrent_at(const ek_tensor *x, int64_t t)
{
    const int64_t step = x->ndim == 3 ? t % x->shape[0] * x->stride[0] : 0;
    return (char *)ek_tensor_address(x) + step * (int64_t)ek_dtype_size(x->dtype);
}

/* Returns what the job computes of part k of the rows of a tensor at step t. A vector is one row
 * for all samples. The tensor may be NULL, which counts as zeros. */
static recurrent_operand recurrent_part(const recurrent_job *job, const ek_tensor *x, int64_t t,
                                        int k)
{
    const int64_t width = x && x->ndim > 1 ? x->stride[x->ndim - 2] : 0,
                  at = job->row * width + k * job->hidden + job->column;
    return (recurrent_operand){x ? recurrent_at(x, t) + at * job->size : NULL, width};
}

/* Appends the first parts, each as an operand. */
static void recurrent_add(recurrent_job *job, const ek_tensor *x, int64_t t, int parts)
{
    for (int k = 0; k < parts; k++)
        job->operand[job->count++] = recurrent_part(job, x, t, k);
}

static int recurrent_parts(ek_recurrent_cell cell)
{
    return cell == EK_CELL_LSTM ? 4 : cell == EK_CELL_GRU ? 3 : 1;
}

/* Begins the description of a step of all rows and columns. */
static recurrent_job recurrent_job_new(ek_dtype dtype, int64_t hidden)
{
    return (recurrent_job){.dtype = dtype,
                           .size = (int64_t)ek_dtype_size(dtype),
                           .hidden = hidden,
                           .columns = hidden};
}

/* Adds the operands of ek_host_recurrent_forward, of step t of several. The states of step t are at
 * `from` before it and at `to` after it. */
static void recurrent_add_forward(recurrent_job *job, ek_recurrent_cell cell, const ek_tensor *h,
                                  const ek_tensor *c, const ek_tensor *gates, const ek_tensor *x,
                                  const ek_tensor *product, const ek_tensor *before, int64_t t,
                                  int64_t from, int64_t to)
{
    const int parts = recurrent_parts(cell);
    job->body = recurrent_forwards[cell][job->dtype == EK_F64];
    recurrent_add(job, h, to, 1);
    if (c)
        recurrent_add(job, c, to, 1);
    if (parts > 1)
        recurrent_add(job, gates, t, RECURRENT_GATES);
    job->outputs = job->count;
    recurrent_add(job, x, t, parts);
    recurrent_add(job, product, t, parts);
    if (before)
        recurrent_add(job, before, from, 1);
}

int ek_host_recurrent_forward(ek_dev *dev, ek_tensor *h, ek_recurrent_cell cell, ek_tensor *c,
                              ek_tensor *gates, const ek_tensor *x, const ek_tensor *product,
                              const ek_tensor *before)
{
    recurrent_job job = recurrent_job_new(h->dtype, h->shape[h->ndim - 1]);
    recurrent_add_forward(&job, cell, h, c, gates, x, product, before, 0, 0, 0);
    recurrent_run_rows(dev, &job, h->shape[0]);
    return 0;
}

/* Adds the operands of ek_host_recurrent_gradient, of step t of several. If `gates` is h, it is the
 * state after the step. */
static void recurrent_add_gradient(recurrent_job *job, ek_tensor *dx, ek_recurrent_cell cell,
                                   ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                                   const ek_tensor *dc, const ek_tensor *gates,
                                   const ek_tensor *before, const ek_tensor *c, int64_t t,
                                   int64_t from, int64_t to)
{
    const int kept = before ? RECURRENT_GATES : 1; /* parts of `gates` and dx */
    job->body = recurrent_gradients[cell][job->dtype == EK_F64];
    recurrent_add(job, dx, t, kept);
    if (dbefore)
        recurrent_add(job, dbefore, 0, 1);
    job->outputs = job->count;
    recurrent_add(job, dh, t, 1);
    recurrent_add(job, more, 0, 1);
    if (cell == EK_CELL_LSTM)
        recurrent_add(job, dc, 0, 1);
    recurrent_add(job, gates, before ? t : to, kept);
    if (before)
        recurrent_add(job, before, from, 1);
    if (c)
        recurrent_add(job, c, to, 1);
}

int ek_host_recurrent_gradient(ek_dev *dev, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                               const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                               const ek_tensor *c)
{
    recurrent_job job = recurrent_job_new(dx->dtype, gates->shape[gates->ndim - 1] /
                                                         (before ? RECURRENT_GATES : 1));
    recurrent_add_gradient(&job, dx, cell, dbefore, dh, more, dc, gates, before, c, 0, 0, 0);
    recurrent_run_rows(dev, &job, dx->shape[0]);
    return 0;
}

/* ---- all steps ---- */

enum {
    RECURRENT_CACHE = 1 << 20, /* Smaller packed weights may be read by each thread. */
    RECURRENT_READS = 64,      /* With fewer samples of all steps, packing doesn't pay. */
    RECURRENT_WORK = 1 << 17,  /* Multiplications that are worth a thread. */
    RECURRENT_PIECES = 256,
    RECURRENT_ROWS = 4 * EK_GEMM_ROWS, /* Most rows of a tile. */
    RECURRENT_BIASES = 2               /* Rows of a forward's panel before those of the weights. */
};

/* A round is the steps that a thread computes without waiting for other threads: all steps of some
 * rows, or one step of some panels. Pieces of a round are independent of each other. */
typedef struct recurrent_sequence {
    const ek_recurrent_steps *call;
    const ek_recurrent_steps_back *back; /* NULL: the forward */
    const ek_gemm_kernel *kernel;
    int64_t size; /* Bytes of an element. */
    int64_t steps, samples, hidden, input, parts;
    int64_t count; /* Steps and, backward, the products of the last step that is computed. */
    char *packed;
    /* Forward, panels are units, with a panel of weights for each part: rows of both biases, of
     * weight_ih and of weight_hh. Backward, they are columns of h and, from `units` on, of x. */
    int64_t units, panels, panel_nbytes, depth;
    bool by_rows;
    int64_t rounds, pieces;
    _Atomic int64_t next_thread, done;       /* `done` counts pieces of all rounds. */
    _Atomic int64_t taken[RECURRENT_PIECES]; /* How many rounds of a piece threads have taken. */
} recurrent_sequence;

/* Packs rows [first, first + lines) of a weight or bias x, or with `turned` columns, into a panel.
 * A vector is one column, and NULL is zeros. Returns the panel's next row. */
static char *recurrent_pack_part(const recurrent_sequence *s, char *to, const ek_tensor *x,
                                 bool turned, int64_t first, int64_t lines, int64_t depth)
{
    const int64_t width = s->kernel->columns, next = width * depth * s->size;
    const int64_t along = x ? x->stride[turned] : 0,
                  across = x && x->ndim == 2 ? x->stride[!turned] : 0;
    if (!x)
        memset(to, 0, (size_t)next);
    else if (s->size == sizeof(float))
        ek_gemm_pack_f32((float *)to, (const float *)ek_tensor_address(x) + first * along, lines,
                         depth, (int)width, along, across);
    else
        ek_gemm_pack_f64((double *)to, (const double *)ek_tensor_address(x) + first * along, lines,
                         depth, (int)width, along, across);
    return to + next;
}

/* Packs panels [begin, end). */
static void recurrent_pack(void *context, int64_t begin, int64_t end)
{
    const recurrent_sequence *s = context;
    const ek_recurrent_steps *call = s->call;
    const int64_t width = s->kernel->columns;
    for (int64_t i = begin; i < end; i++) {
        char *to = s->packed + i * s->panel_nbytes;
        if (s->back) {
            const bool x = i >= s->units;
            const int64_t first = (i - x * s->units) * width;
            recurrent_pack_part(s, to, x ? call->input_weight : call->weight, true, first,
                                ek_smaller(width, (x ? s->input : s->hidden) - first), s->depth);
            continue;
        }
        const int64_t unit = i / s->parts * width, first = i % s->parts * s->hidden + unit,
                      lines = ek_smaller(width, s->hidden - unit);
        to = recurrent_pack_part(s, to, call->input_bias, false, first, lines, 1);
        to = recurrent_pack_part(s, to, call->bias, false, first, lines, 1);
        to = recurrent_pack_part(s, to, call->input_weight, false, first, lines, s->input);
        recurrent_pack_part(s, to, call->weight, false, first, lines, s->hidden);
    }
}

/* Computes `rows` x `columns` elements of a product with a panel, from the panel's row call->b on.
 * Strides count elements. */
static void recurrent_multiply(const recurrent_sequence *s, const ek_gemm_call *product,
                               int64_t rows, int64_t columns)
{
    const ek_gemm_kernel *kernel = s->kernel;
    const int64_t width = kernel->columns, size = s->size, block = EK_GEMM_BLOCK_NBYTES / size;
    const int64_t vectors = 2 * columns > width ? 2 : 1, whole = vectors * width / 2 == columns;
    const int64_t tiles = ek_divide_up(rows, kernel->rows), depth = product->k;
    _Alignas(64) char tile[EK_GEMM_ROWS * EK_GEMM_COLUMNS * sizeof(double)];
    if (!whole) /* The kernel reads whole vectors. */
        memset(tile, 0, sizeof tile);
    /* The next panel is prefetched. */
    ek_gemm_ahead none = {.runs = 0}, next = {.run = (const char *)product->b + s->panel_nbytes,
                                              .lines = depth * width * size / 64,
                                              .runs = 1};
    next.pace = 1 + next.lines * EK_GEMM_STRETCH / (tiles * depth);
    for (int64_t k = 0; k < depth; k += block)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t row = ek_part_of(rows, i, tiles),
                          n = ek_part_of(rows, i + 1, tiles) - row;
            char *to = (char *)product->c + row * product->c_row * size;
            ek_gemm_call call = *product;
            call.k = ek_smaller(block, depth - k);
            call.a = (const char *)product->a + (row * product->a_row + k) * size;
            call.a_depth = 1;
            call.b = (const char *)product->b + k * width * size;
            call.b_depth = width;
            call.c = whole ? to : tile;
            call.c_row = whole ? product->c_row : width;
            call.add = product->add || k > 0;
            call.addend = k > 0 ? NULL : product->addend;
            call.next_a = product->next_a ? product->next_a : &none;
            call.next_b = &next;
            for (int64_t r = 0; !whole && call.add && r < n; r++)
                memcpy(tile + r * width * size, to + r * product->c_row * size,
                       (size_t)(columns * size));
            kernel->inner[vectors - 1][n - 1](&call);
            for (int64_t r = 0; !whole && r < n; r++)
                memcpy(to + r * product->c_row * size, tile + r * width * size,
                       (size_t)(columns * size));
        }
}

/* Returns how many parts a row of a tile has. */
static int recurrent_tile_parts(const recurrent_sequence *s)
{
    return s->parts > 1 ? RECURRENT_GATES : 1;
}

/* Writes the sums of a panel's units to the tile: bias_ih and the products of x and h. In a GRU the
 * product that r multiplies, with its bias, follows them. */
static void recurrent_multiply_forward(const recurrent_sequence *s, int64_t t, int64_t row,
                                       int64_t rows, int64_t panel, char *tile)
{
    const ek_recurrent_steps *call = s->call;
    const int64_t size = s->size, width = s->kernel->columns, line = width * size, half = width / 2,
                  columns = s->hidden - panel * width <= half ? half : width;
    const char *weights = s->packed + panel * s->parts * s->panel_nbytes;
    for (int64_t part = 0; part < s->parts; part++, weights += s->panel_nbytes) {
        const bool kept = part == 2 && call->cell == EK_CELL_GRU;
        ek_gemm_call product = {.k = s->input,
                                .a = recurrent_at(call->x, t) + row * s->input * size,
                                .a_row = s->input,
                                .b = weights + RECURRENT_BIASES * line,
                                .c = tile + part * line,
                                .c_row = recurrent_tile_parts(s) * width,
                                .addend = weights};
        recurrent_multiply(s, &product, rows, columns);
        product.k = product.a_row = s->hidden;
        product.a = recurrent_at(call->h, t + call->reverse) + row * s->hidden * size;
        product.b = weights + (RECURRENT_BIASES + s->input) * line;
        product.c = tile + (part + kept) * line;
        product.add = !kept;
        product.addend = kept ? weights + line : NULL;
        recurrent_multiply(s, &product, rows, columns);
    }
}

/* Computes a panel of the gradients of the state before step t, or of x, from those of the step's
 * sums. In a GRU that of the state is added to what passes the gates. */
static void recurrent_multiply_back(const recurrent_sequence *s, int64_t t, int64_t row,
                                    int64_t rows, int64_t panel, ek_gemm_ahead *ahead)
{
    const int64_t size = s->size, width = s->kernel->columns, a_row = s->back->dx->shape[2];
    const bool x = panel >= s->units, split = s->call->cell == EK_CELL_GRU && !x;
    const ek_tensor *to = x ? s->back->dinput : s->back->dh;
    if (x ? !to : !s->back->wants_h && t == (s->call->reverse ? s->steps - 1 : 0))
        return;
    const int64_t c_row = x ? s->input : s->hidden, column = (panel - x * s->units) * width,
                  columns = ek_smaller(width, c_row - column);
    const char *a = recurrent_at(s->back->dx, t) + row * a_row * size;
    ek_gemm_call product = {.k = s->depth - split * s->hidden,
                            .a = a,
                            .a_row = a_row,
                            .b = s->packed + panel * s->panel_nbytes,
                            .c = recurrent_at(to, t) + (row * c_row + column) * size,
                            .c_row = c_row,
                            .add = split,
                            .next_a = ahead};
    recurrent_multiply(s, &product, rows, columns);
    if (!split)
        return;
    product.b = (const char *)product.b + product.k * width * size;
    product.k = s->hidden;
    product.a = a + 3 * s->hidden * size;
    recurrent_multiply(s, &product, rows, columns);
}

/* Computes the gates of a panel's units from the tile's sums. What no backward needs stays in the
 * tile. */
static void recurrent_gates(const recurrent_sequence *s, int64_t t, int64_t row, int64_t rows,
                            int64_t panel, char *tile)
{
    const ek_recurrent_steps *call = s->call;
    const bool lstm = call->cell == EK_CELL_LSTM, gru = call->cell == EK_CELL_GRU;
    const int64_t width = s->kernel->columns, column = panel * width;
    recurrent_job job = recurrent_job_new(call->h->dtype, s->hidden);
    job.row = row;
    job.column = column;
    job.columns = ek_smaller(width, s->hidden - column);
    recurrent_add_forward(&job, call->cell, call->h, call->c, call->gates, NULL, call->bias,
                          lstm  ? call->c
                          : gru ? call->h
                                : NULL,
                          t, t + call->reverse, t + !call->reverse);
    job.copy = recurrent_part(&job, call->y, t, 0);
    const int parts = recurrent_tile_parts(s);
    for (int k = 0; k < parts; k++) {
        const recurrent_operand own = {tile + k * width * s->size, parts * width};
        job.operand[job.outputs + (gru && k == 3 ? 5 : k)] = own;
        if (parts > 1 && !call->gates)
            job.operand[job.outputs - parts + k] = own;
    }
    recurrent_run(&job, 0, rows);
}

/* Computes the gradients of some units' sums at step t. */
static void recurrent_gates_back(const recurrent_sequence *s, int64_t t, int64_t row, int64_t rows,
                                 int64_t column, int64_t columns)
{
    const ek_recurrent_steps *call = s->call;
    const ek_recurrent_steps_back *back = s->back;
    const bool lstm = call->cell == EK_CELL_LSTM, gru = call->cell == EK_CELL_GRU;
    recurrent_job job = recurrent_job_new(call->h->dtype, s->hidden);
    job.row = row;
    job.column = column;
    job.columns = columns;
    recurrent_add_gradient(&job, back->dx, call->cell,
                           lstm  ? back->dc
                           : gru ? back->dh
                                 : NULL,
                           back->dy, back->dh, back->dc, lstm || gru ? call->gates : call->h,
                           lstm  ? call->c
                           : gru ? call->h
                                 : NULL,
                           call->c, t, t + call->reverse, t + !call->reverse);
    recurrent_run(&job, 0, rows);
}

/* Returns the gates of some rows, for prefetching while all panels are multiplied. */
static ek_gemm_ahead recurrent_gates_ahead(const recurrent_sequence *s, int64_t t, int64_t row,
                                           int64_t rows)
{
    const int64_t nbytes = RECURRENT_GATES * s->hidden * s->size;
    ek_gemm_ahead ahead = {.run = recurrent_at(s->call->gates, t) + row * nbytes,
                           .lines = rows * nbytes / 64,
                           .runs = 1};
    ahead.pace = 1 + ahead.lines * EK_GEMM_STRETCH /
                         (s->panels * ek_divide_up(rows, s->kernel->rows) * s->depth);
    return ahead;
}

/* Computes step i, in the order of computation, of some rows and panels. Backward, the products are
 * those of the step before. */
static void recurrent_step(const recurrent_sequence *s, int64_t i, int64_t row, int64_t rows,
                           int64_t panel, int64_t panel_end)
{
    const bool forward = !s->back, falls = s->call->reverse == forward;
    const int64_t at = forward ? i : i - 1, t = falls ? s->steps - 1 - at : at,
                  parts = ek_divide_up(rows, RECURRENT_ROWS);
    _Alignas(64) char tile[RECURRENT_ROWS * RECURRENT_GATES * EK_GEMM_COLUMNS * sizeof(float)];
    for (int64_t p = panel; p < panel_end && forward; p++)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t first = ek_part_of(rows, part, parts),
                          count = ek_part_of(rows, part + 1, parts) - first;
            recurrent_multiply_forward(s, t, row + first, count, p, tile);
            recurrent_gates(s, t, row + first, count, p, tile);
        }
    const int64_t own = falls ? s->steps - 1 - i : i, column = panel * s->kernel->columns,
                  end = ek_smaller(panel_end * s->kernel->columns, s->hidden);
    ek_gemm_ahead ahead = {.runs = 0};
    if (!forward && s->by_rows && i < s->steps && s->call->gates)
        ahead = recurrent_gates_ahead(s, own, row, rows);
    for (int64_t p = panel; p < panel_end && !forward && at >= 0; p++)
        recurrent_multiply_back(s, t, row, rows, p, &ahead);
    if (!forward && i < s->steps && column < end)
        recurrent_gates_back(s, own, row, rows, column, end - column);
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
    const int64_t rows = s->kernel->rows, weights = (s->input + s->hidden) * s->hidden * s->parts,
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
    s->input = s->call->x->shape[2];
    if ((h->dtype != EK_F32 && h->dtype != EK_F64) || s->steps * s->samples < RECURRENT_READS ||
        s->hidden == 0 || s->input == 0 || (s->call->bias && s->call->bias->stride[0] != 1))
        return 0;
    s->parts = recurrent_parts(s->call->cell);
    s->kernel = ek_gemm_kernel_best(h->dtype);
    const int64_t width = s->kernel->columns;
    s->units = ek_divide_up(s->hidden, width);
    s->panels = s->units;
    s->count = s->steps;
    s->depth = RECURRENT_BIASES + s->input + s->hidden;
    if (s->back) {
        s->panels += s->back->dinput ? ek_divide_up(s->input, width) : 0;
        s->count += s->back->dinput || s->back->wants_h;
        s->depth = s->parts * s->hidden;
    }
    s->panel_nbytes = width * s->depth * s->size;
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
    recurrent_sequence s = {.call = steps};
    return recurrent_sequence_run(dev, &s);
}

int ek_host_recurrent_steps_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                     const ek_recurrent_steps_back *back)
{
    recurrent_sequence s = {.call = steps, .back = back};
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
