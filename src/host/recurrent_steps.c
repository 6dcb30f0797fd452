/* recurrent_steps.c: all steps of a direction of a recurrent layer, and their gradients.
 *
 * The weights are packed once, and one parallel region follows. The forward computes the sums of
 * some rows and units of a step in a tile that stays in level 1 cache, the product of x before that
 * of h, and the gates from the tile. So the sums never travel to memory. The backward computes the
 * gradients of h and x from those of the sums, while these lie in cache. If there are enough
 * samples, each thread computes all steps of some of them, and waits for no other thread. Otherwise
 * each thread computes some of the units, whose weights stay in its cache, and all threads wait for
 * each other after each step. */
#include <stdatomic.h>
#include <string.h>

#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/parallel.h"
#include "host/recurrent.h"

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
    return s->parts > 1 ? EK_RECURRENT_GATES : 1;
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
                                .a = ek_recurrent_at(call->x, t) + row * s->input * size,
                                .a_row = s->input,
                                .b = weights + RECURRENT_BIASES * line,
                                .c = tile + part * line,
                                .c_row = recurrent_tile_parts(s) * width,
                                .addend = weights};
        recurrent_multiply(s, &product, rows, columns);
        product.k = product.a_row = s->hidden;
        product.a = ek_recurrent_at(call->h, t + call->reverse) + row * s->hidden * size;
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
    const char *a = ek_recurrent_at(s->back->dx, t) + row * a_row * size;
    ek_gemm_call product = {.k = s->depth - split * s->hidden,
                            .a = a,
                            .a_row = a_row,
                            .b = s->packed + panel * s->panel_nbytes,
                            .c = ek_recurrent_at(to, t) + (row * c_row + column) * size,
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

/* Returns which of two tensors belongs to the state that gates are applied to: c in an LSTM, h in a
 * GRU. Other cells have no gates. */
static ek_tensor *recurrent_gated(const recurrent_sequence *s, ek_tensor *h, ek_tensor *c)
{
    return s->call->cell == EK_CELL_LSTM ? c : s->call->cell == EK_CELL_GRU ? h : NULL;
}

/* Computes the gates of a panel's units from the tile's sums. What no backward needs stays in the
 * tile. */
static void recurrent_gates(const recurrent_sequence *s, int64_t t, int64_t row, int64_t rows,
                            int64_t panel, char *tile)
{
    const ek_recurrent_steps *call = s->call;
    const bool gru = call->cell == EK_CELL_GRU;
    const int64_t width = s->kernel->columns, column = panel * width;
    ek_recurrent_job job = {.dtype = call->h->dtype,
                            .size = s->size,
                            .hidden = s->hidden,
                            .row = row,
                            .column = column,
                            .columns = ek_smaller(width, s->hidden - column)};
    ek_recurrent_job_forward(&job, call->cell, call->h, call->c, call->gates, NULL, call->bias,
                             recurrent_gated(s, call->h, call->c), t, t + call->reverse,
                             t + !call->reverse);
    job.copy = ek_recurrent_job_part(&job, call->y, t, 0);
    const int parts = recurrent_tile_parts(s);
    for (int k = 0; k < parts; k++) {
        const ek_recurrent_operand own = {tile + k * width * s->size, parts * width};
        job.operand[job.outputs + (gru && k == 3 ? 5 : k)] = own;
        if (parts > 1 && !call->gates)
            job.operand[job.outputs - parts + k] = own;
    }
    ek_recurrent_job_run(&job, 0, rows);
}

/* Computes the gradients of some units' sums at step t. */
static void recurrent_gates_back(const recurrent_sequence *s, int64_t t, int64_t row, int64_t rows,
                                 int64_t column, int64_t columns)
{
    const ek_recurrent_steps *call = s->call;
    const ek_recurrent_steps_back *back = s->back;
    ek_tensor *before = recurrent_gated(s, call->h, call->c);
    ek_recurrent_job job = {.dtype = call->h->dtype,
                            .size = s->size,
                            .hidden = s->hidden,
                            .row = row,
                            .column = column,
                            .columns = columns};
    ek_recurrent_job_gradient(&job, back->dx, call->cell, recurrent_gated(s, back->dh, back->dc),
                              back->dy, back->dh, back->dc, before ? call->gates : call->h, before,
                              call->c, t, t + call->reverse, t + !call->reverse);
    ek_recurrent_job_run(&job, 0, rows);
}

/* Returns the gates of some rows, for prefetching while all panels are multiplied. */
static ek_gemm_ahead recurrent_gates_ahead(const recurrent_sequence *s, int64_t t, int64_t row,
                                           int64_t rows)
{
    const int64_t nbytes = EK_RECURRENT_GATES * s->hidden * s->size;
    ek_gemm_ahead ahead = {.run = ek_recurrent_at(s->call->gates, t) + row * nbytes,
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
    _Alignas(64) char tile[RECURRENT_ROWS * EK_RECURRENT_GATES * EK_GEMM_COLUMNS * sizeof(float)];
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
    s->parts = ek_recurrent_parts(s->call->cell);
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
