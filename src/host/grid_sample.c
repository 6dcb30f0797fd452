/* grid_sample.c: images at places between their pixels (kernels/grid_sample.h), the adjoint, and
 * the slope with respect to the places. Taps and weights of a block of places are computed once,
 * for all channels. */
#ifndef EK_REAL
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/grid_sample.h"
#include "kernels/stage.h"

/* GRID_BLOCK: places in a block; GRID_TAPS: the most elements of a plane that a place reads. */
enum { GRID_BLOCK = 128, GRID_TAPS = 16, GRID_LANES = 16 };

/* Images are dense (N, P, C), or (N, C, P) if they are planar. */
typedef struct grid_job {
    const ek_grid_params *params;
    const void *x, *dy, *grid; /* grid is dense (N, places, dims) */
    void *out;                 /* y, dx or dgrid */
    int64_t size[3];           /* sizes of x */
    int64_t samples, channels, plane, places;
    int64_t chunks; /* Chunks of a sample: of its channels for the adjoint, else of its places. */
    bool planar;
    int taps;
} grid_job;

#define EK_FOR_REALS "host/grid_sample.c"
#include "kernels/for_reals.h"

/* Stages the tensors, of which x or dy may be NULL, and runs the kernel that writes out. Images and
 * samples keep their order of memory if they are all channels-last or all planar. */
static int grid_run(ek_dev *dev, ek_parallel_body *f32, ek_parallel_body *f64, ek_tensor *out,
                    const ek_tensor *x, const ek_tensor *dy, const ek_tensor *grid,
                    const ek_grid_params *params)
{
    enum { OUT, X, DY, GRID, TENSORS };
    const ek_tensor *const tensors[TENSORS] = {out, x, dy, grid};
    const ek_tensor *images = x ? x : out, *a = x ? x : dy, *b = x && dy ? dy : out;
    const bool last = ek_is_channels_last(a) && ek_is_channels_last(b);
    grid_job job = {.params = params,
                    .samples = images->shape[0],
                    .channels = images->shape[1],
                    .plane = 1,
                    .places = 1,
                    .taps = 1,
                    .planar = !last && ek_tensor_is_contiguous(a, EK_CONTIGUOUS) &&
                              ek_tensor_is_contiguous(b, EK_CONTIGUOUS)};
    for (int d = 0; d < params->dims; d++) {
        job.size[d] = images->shape[2 + d];
        job.plane *= images->shape[2 + d];
        job.places *= grid->shape[1 + d];
        job.taps *= ek_grid_taps(params->mode);
    }
    if (job.plane > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "images of %lld positions can't be sampled on a grid",
                       (long long)job.plane);
    ek_stage stages[TENSORS] = {{.nbytes = 0}};
    void *data[TENSORS] = {NULL};
    int rc = 0;
    for (int k = 0; k < TENSORS && rc >= 0; k++) {
        const ek_tensor *t = tensors[k];
        const bool places = k == GRID || (k == OUT && x && dy);
        if (!t)
            continue;
        rc = ek_stage_begin(&stages[k], dev, t, t->dtype, places ? t->ndim - 1 : 1,
                            places ? ek_tensor_is_contiguous(t, EK_CONTIGUOUS) : last || job.planar,
                            k != OUT);
        data[k] = rc < 0 ? NULL : ek_tensor_address(stages[k].tensor);
    }
    if (rc >= 0) {
        job.out = data[OUT];
        job.x = data[X];
        job.dy = data[DY];
        job.grid = data[GRID];
        /* Threads of the adjoint divide the samples among them, and if these are few, also the
         * channels. Each element is computed by one thread. */
        job.chunks =
            x ? ek_divide_up(job.places, GRID_BLOCK)
              : ek_smaller(ek_divide_up(ek_parallel_threads(dev), ek_larger(job.samples, 1)),
                           job.channels);
        ek_parallel_for(dev, job.samples * job.chunks, 1, out->dtype == EK_F64 ? f64 : f32, &job);
    }
    for (int k = 0; k < TENSORS; k++)
        rc = ek_stage_end(&stages[k], dev, k == OUT, rc);
    return rc;
}

int ek_host_grid_sample(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *grid,
                        const ek_grid_params *params)
{
    return grid_run(dev, grid_sample_part_f32, grid_sample_part_f64, y, x, NULL, grid, params);
}

int ek_host_grid_sample_adjoint(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                const ek_tensor *grid, const ek_grid_params *params)
{
    return grid_run(dev, grid_adjoint_part_f32, grid_adjoint_part_f64, dx, NULL, dy, grid, params);
}

int ek_host_grid_sample_slope(ek_dev *dev, ek_tensor *dgrid, const ek_tensor *dy,
                              const ek_tensor *x, const ek_tensor *grid,
                              const ek_grid_params *params)
{
    if (ek_count(x) == 0)
        return ek_host_fill(dev, dgrid, 0);
    return grid_run(dev, grid_slope_part_f32, grid_slope_part_f64, dgrid, x, dy, grid, params);
}

#else /* for each EK_REAL */
#include "host/taps.h"

/* The taps of a block of `count` places: place i reads the elements index[t * GRID_BLOCK + i] of a
 * plane. */
typedef struct EK_NAME(grid_block) {
    int64_t sample, first, count;
    int32_t index[GRID_TAPS * GRID_BLOCK];
    EK_REAL weight[GRID_TAPS * GRID_BLOCK];
    EK_NAME(ek_grid_place) place[GRID_BLOCK][3]; /* with slopes, of all places; else entry 0 only */
} EK_NAME(grid_block);

/* Writes the elements and weights of place i, one for each combination of the directions' taps. */
static inline __attribute__((always_inline)) void
EK_NAME(grid_combine)(const grid_job *job, const EK_NAME(ek_grid_place) * place, int64_t i,
                      EK_NAME(grid_block) * block)
{
    const int dims = job->params->dims, along = ek_grid_taps(job->params->mode);
    const int front = dims == 3 ? along : 1;
    const EK_NAME(ek_grid_place) *y = &place[dims - 2], *x = &place[dims - 1];
    int64_t t = 0;
    for (int a = 0; a < front; a++) {
        const EK_REAL outer = dims == 3 ? place[0].weight[a] : 1;
        const int64_t base = dims == 3 ? place[0].index[a] * job->size[1] : 0;
        for (int b = 0; b < along; b++)
            for (int c = 0; c < along; c++, t++) {
                block->weight[t * GRID_BLOCK + i] = outer * y->weight[b] * x->weight[c];
                block->index[t * GRID_BLOCK + i] =
                    (int32_t)((base + y->index[b]) * job->size[dims - 1] + x->index[c]);
            }
    }
}

/* Finds the taps of places first, first + 1, ... of a sample. */
static inline __attribute__((always_inline)) void EK_NAME(grid_find)(const grid_job *job,
                                                                     int64_t sample, int64_t first,
                                                                     bool slopes,
                                                                     EK_NAME(grid_block) * block)
{
    const int dims = job->params->dims;
    const EK_REAL *grid = (const EK_REAL *)job->grid + (sample * job->places + first) * dims;
    block->sample = sample;
    block->first = first;
    block->count = ek_smaller(GRID_BLOCK, job->places - first);
    for (int64_t i = 0; i < block->count; i++) {
        EK_NAME(ek_grid_place) *place = block->place[slopes ? i : 0];
        for (int d = 0; d < dims; d++)
            EK_NAME(ek_grid_place_at)
        (job->params, d, job->size[d], grid[i * dims + dims - 1 - d], slopes, &place[d]);
        EK_NAME(grid_combine)(job, place, i, block);
    }
}

EK_MULTIVERSION
static void EK_NAME(grid_sample_block)(const grid_job *job, EK_NAME(grid_block) * block)
{
    const int64_t channels = job->channels, sample = block->sample;
    const EK_REAL *x = (const EK_REAL *)job->x + sample * channels * job->plane;
    EK_REAL *y = (EK_REAL *)job->out + sample * channels * job->places;
    if (job->planar) {
        for (int64_t c = 0; c < channels; c++)
            EK_NAME(taps_gather)
        (block->count, GRID_BLOCK, job->taps, y + c * job->places + block->first, block->index,
         block->weight, x + c * job->plane);
        return;
    }
    for (int64_t i = 0; i < block->count; i++) {
        EK_NAME(taps_sum) sum = {.n = channels, .y = y + (block->first + i) * channels};
        for (int t = 0; t < job->taps; t++) {
            const EK_REAL weight = block->weight[t * GRID_BLOCK + i];
            if (weight != 0)
                EK_NAME(taps_push)
            (&sum, weight, x + block->index[t * GRID_BLOCK + i] * channels);
        }
        EK_NAME(taps_end)(&sum);
    }
}

static void EK_NAME(grid_sample_part)(void *context, int64_t begin, int64_t end)
{
    const grid_job *job = context;
    EK_NAME(grid_block) block;
    for (int64_t i = begin; i < end; i++) {
        EK_NAME(grid_find)(job, i / job->chunks, i % job->chunks * GRID_BLOCK, false, &block);
        EK_NAME(grid_sample_block)(job, &block);
    }
}

/* ---- the adjoint: each place adds to what it reads, in the order of places ---- */

EK_MULTIVERSION
static void EK_NAME(grid_scatter_block)(const grid_job *job, const EK_NAME(grid_block) * block,
                                        int64_t from, int64_t to)
{
    const int64_t channels = job->channels, sample = block->sample;
    EK_REAL *dx = (EK_REAL *)job->out + sample * channels * job->plane;
    const EK_REAL *dy = (const EK_REAL *)job->dy + sample * channels * job->places;
    if (job->planar) {
        for (int64_t c = from; c < to; c++)
            for (int64_t i = 0; i < block->count; i++) {
                const EK_REAL g = dy[c * job->places + block->first + i];
                for (int t = 0; t < job->taps; t++) {
                    const EK_REAL weight = block->weight[t * GRID_BLOCK + i];
                    if (weight != 0)
                        dx[c * job->plane + block->index[t * GRID_BLOCK + i]] += weight * g;
                }
            }
        return;
    }
    for (int64_t i = 0; i < block->count; i++)
        for (int t = 0; t < job->taps; t++) {
            const EK_REAL weight = block->weight[t * GRID_BLOCK + i];
            const EK_REAL *g = dy + (block->first + i) * channels + from;
            EK_NAME(taps_sum)
            sum = {.n = to - from,
                   .y = dx + block->index[t * GRID_BLOCK + i] * channels + from,
                   .more = true};
            if (weight != 0)
                EK_NAME(taps_push)(&sum, weight, g);
            EK_NAME(taps_end)(&sum);
        }
}

static void EK_NAME(grid_adjoint_part)(void *context, int64_t begin, int64_t end)
{
    const grid_job *job = context;
    EK_NAME(grid_block) block;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t sample = unit / job->chunks, chunk = unit % job->chunks;
        const int64_t from = ek_part_of(job->channels, chunk, job->chunks);
        const int64_t to = ek_part_of(job->channels, chunk + 1, job->chunks);
        const int64_t rows = job->planar ? 1 : job->plane;
        const int64_t run = (to - from) * (job->planar ? job->plane : 1);
        EK_REAL *dx = (EK_REAL *)job->out + sample * job->channels * job->plane +
                      from * (job->planar ? job->plane : 1);
        for (int64_t row = 0; row < rows; row++)
            memset(dx + row * job->channels, 0, (size_t)run * sizeof *dx);
        for (int64_t first = 0; first < job->places; first += GRID_BLOCK) {
            EK_NAME(grid_find)(job, sample, first, false, &block);
            EK_NAME(grid_scatter_block)(job, &block, from, to);
        }
    }
}

/* ---- the slope: for each tap of a place the sum over channels of dy x; then these sums times the
 * weights' derivatives ---- */

static inline __attribute__((always_inline)) EK_REAL
EK_NAME(grid_dot)(int64_t n, const EK_REAL *restrict a, const EK_REAL *restrict b)
{
    EK_REAL lane[GRID_LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + GRID_LANES <= n; i += GRID_LANES)
        for (int j = 0; j < GRID_LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int j = 0; j < GRID_LANES; j++)
        sum += lane[j];
    return sum;
}

EK_MULTIVERSION
static void EK_NAME(grid_dots)(const grid_job *job, const EK_NAME(grid_block) * block,
                               EK_REAL *dots)
{
    const int64_t channels = job->channels, sample = block->sample, count = block->count;
    const EK_REAL *x = (const EK_REAL *)job->x + sample * channels * job->plane;
    const EK_REAL *dy = (const EK_REAL *)job->dy + sample * channels * job->places;
    if (!job->planar) {
        for (int64_t i = 0; i < count; i++)
            for (int t = 0; t < job->taps; t++)
                dots[t * GRID_BLOCK + i] =
                    EK_NAME(grid_dot)(channels, dy + (block->first + i) * channels,
                                      x + block->index[t * GRID_BLOCK + i] * channels);
        return;
    }
    memset(dots, 0, (size_t)job->taps * GRID_BLOCK * sizeof *dots);
    for (int64_t c = 0; c < channels; c++)
        for (int t = 0; t < job->taps; t++) {
            const EK_REAL *restrict g = dy + c * job->places + block->first;
            const EK_REAL *restrict from = x + c * job->plane;
            const int32_t *restrict index = block->index + t * GRID_BLOCK;
            EK_REAL *restrict dot = dots + t * GRID_BLOCK;
            for (int64_t i = 0; i < count; i++)
                dot[i] += g[i] * from[index[i]];
        }
}

/* Returns the sum over a place's taps of `dots` (their sums over channels) times the weights, which
 * are differentiated once more in direction `along`. */
static EK_REAL EK_NAME(grid_slope)(const grid_job *job, const EK_NAME(ek_grid_place) * place,
                                   int along, const EK_REAL *dots)
{
    const int dims = job->params->dims, taps = ek_grid_taps(job->params->mode);
    EK_REAL sum = 0;
    for (int t = 0; t < job->taps; t++) {
        EK_REAL weight = 1;
        for (int d = dims - 1, rest = t; d >= 0; d--, rest /= taps)
            weight *= d == along ? place[d].slope[rest % taps] : place[d].weight[rest % taps];
        if (weight != 0)
            sum += weight * dots[t * GRID_BLOCK];
    }
    return sum;
}

static void EK_NAME(grid_slope_part)(void *context, int64_t begin, int64_t end)
{
    const grid_job *job = context;
    const int dims = job->params->dims;
    EK_NAME(grid_block) block;
    EK_REAL dots[GRID_TAPS * GRID_BLOCK];
    for (int64_t unit = begin; unit < end; unit++) {
        EK_NAME(grid_find)(job, unit / job->chunks, unit % job->chunks * GRID_BLOCK, true, &block);
        EK_NAME(grid_dots)(job, &block, dots);
        EK_REAL *out = (EK_REAL *)job->out + (block.sample * job->places + block.first) * dims;
        for (int64_t i = 0; i < block.count; i++)
            for (int d = 0; d < dims; d++)
                out[i * dims + dims - 1 - d] =
                    EK_NAME(grid_slope)(job, block.place[i], d, dots + i);
    }
}

#endif
