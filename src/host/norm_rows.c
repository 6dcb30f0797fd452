/* norm_rows.c: normalisation over runs with parameters per element: layer norm, RMS norm, and group
 * norm of channels of one value. A run is a group of a sample, whose elements follow each other in
 * memory; other orders and 16 bits are staged.
 *
 * A run of at most ROWS_LONGEST elements is one piece: its moments or sums are computed, and its
 * line is written, while level 1 cache holds it. A longer run is cut into pieces, over which a
 * first pass sums and a second one writes, so that few long runs occupy all threads.
 *
 * Moments are summed in f64. The sums over a piece's gradients are lanes of the tensor's own type,
 * and so are those by element over ROWS_SHORT samples; f64 joins both. Pieces and blocks of samples
 * depend on the shape alone, so that results don't depend on the number of threads. */
#ifndef EK_REAL
#include <math.h>

#include "host/norm.h"

enum {
    ROWS_LONGEST = 4096, /* Elements of a run that is one piece. */
    ROWS_PIECE = 1024,   /* Elements of a longer run's piece. */
    ROWS_GRAIN = 8192,   /* Elements that are worth a task. */
    ROWS_BLOCKS = 64,    /* Most blocks of samples with sums by element. */
    ROWS_SHORT = 32,     /* Samples whose sums by element are added in the tensor's own type. */
    ROWS_LANES = 32
};

/* The tensors of a job, of which those from ROWS_OUT on are written. */
enum {
    ROWS_X,
    ROWS_RESIDUAL,
    ROWS_DY,
    ROWS_WEIGHT,
    ROWS_BIAS,
    ROWS_OUT, /* The tensor y or dx. */
    ROWS_TOTAL,
    ROWS_DWEIGHT,
    ROWS_DBIAS,
    ROWS_TENSORS
};

typedef struct rows_job {
    ek_dev *dev;
    bool is_f64;
    int64_t runs, groups, size; /* Groups of a sample; elements of a run. */
    int64_t piece, pieces;
    int64_t block, blocks; /* Samples of a block. */
    ek_stage stage[ROWS_TENSORS];
    void *data[ROWS_TENSORS]; /* NULL if absent. */
    ek_dtype narrow;          /* The dtype of a residual of 16 bits, else f32. */
    double eps;               /* Negative: the variance is stored instead of invstd. */
    bool adds, writes;        /* Moments or sums are computed; lines are written. */
    void *mean, *invstd;      /* Statistics of runs, or NULL. */
    void *sum, *product;      /* Of runs: weight dy and weight dy xhat; zeros if NULL. */
    double *parts;            /* Two moments or sums of each piece of each run. */
    double *by_element;       /* The sums of dy xhat, then of dy, of each block, or NULL. */
    void *room;               /* The workspace of sums. */
    size_t room_nbytes;
} rows_job;

/* Task i is a piece of a group, in all samples of a block. */
typedef struct rows_task {
    int64_t piece, group, first, last;
    int64_t at, n; /* The piece's first element in a sample; its elements. */
} rows_task;

static rows_task rows_task_of(const rows_job *job, int64_t i)
{
    rows_task task = {.piece = i % job->pieces, .group = i / job->pieces % job->groups};
    task.first = i / job->pieces / job->groups * job->block;
    task.last = ek_smaller(task.first + job->block, job->runs / job->groups);
    task.at = task.group * job->size + task.piece * job->piece;
    task.n = ek_smaller(job->piece, job->size - task.piece * job->piece);
    return task;
}

#define EK_FOR_REALS "host/norm_rows.c"
#include "kernels/for_reals.h"

static void *rows_address(const ek_tensor *tensor)
{
    return tensor ? ek_tensor_address(tensor) : NULL;
}

/* Frees what a job has taken. Stores its outputs if rc is 0. Returns 0 or an error. */
static int rows_end(rows_job *job, int rc)
{
    for (int k = 0; k < ROWS_TENSORS; k++)
        rc = ek_stage_end(&job->stage[k], job->dev, k >= ROWS_OUT, rc);
    if (job->room)
        ek_dev_free(job->dev, job->room, job->room_nbytes, EK_MEMORY_WORKSPACE);
    return rc;
}

/* Stages the tensors, and cuts x. */
static int rows_begin(rows_job *job, ek_dev *dev, const ek_norm_args *args, const ek_tensor *mean,
                      const ek_tensor *invstd, const ek_tensor *out, const ek_norm_sums *sums)
{
    const ek_tensor *x = args->x;
    const ek_tensor *const tensors[ROWS_TENSORS] = {x,           args->residual,
                                                    args->dy,    args->weight,
                                                    args->bias,  out,
                                                    args->total, sums->dweight,
                                                    sums->dbias};
    const ek_norm_geometry g = ek_norm_geometry_of(x, mean, invstd);
    const ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    const int last = x->ndim - 1,
              axis = ek_is_channels_last(x) && !ek_is_dense_along(x, last) ? 1 : last;
    *job = (rows_job){.dev = dev,
                      .is_f64 = dtype == EK_F64,
                      .runs = g.outer * g.groups,
                      .groups = g.groups,
                      .size = g.each * g.inner,
                      .block = 1,
                      .mean = rows_address(mean),
                      .invstd = rows_address(invstd)};
    job->piece = job->size > ROWS_LONGEST ? ROWS_PIECE : job->size;
    job->pieces = ek_divide_up(job->size, job->piece);
    if (args->dy)
        job->block = ek_larger(ek_divide_up(g.outer, ROWS_BLOCKS),
                               job->pieces > 1
                                   ? ROWS_SHORT
                                   : ek_smaller(ROWS_SHORT, 1 + ROWS_GRAIN / g.groups / job->size));
    job->blocks = ek_divide_up(g.outer, job->block);
    int rc = 0;
    for (int k = 0; k < ROWS_TENSORS && rc >= 0; k++) {
        const ek_tensor *t = tensors[k];
        if (!t)
            continue;
        /* A parameter has the order of a sample. */
        const int own = t->ndim == x->ndim ? axis : t->ndim == 1 ? 0 : axis - 1;
        const bool narrow = k == ROWS_RESIDUAL && !args->dy && ek_dtype_is_narrow(t->dtype);
        job->narrow = narrow ? t->dtype : job->narrow;
        rc = ek_stage_begin(&job->stage[k], dev, t, narrow ? t->dtype : dtype, own,
                            (narrow || t->dtype == dtype) && ek_is_dense_along(t, own),
                            k < ROWS_OUT);
        job->data[k] = rc < 0 ? NULL : ek_tensor_address(job->stage[k].tensor);
    }
    return rc < 0 ? rows_end(job, rc) : 0;
}

/* Runs a job, and ends it. Returns 0 or an error. */
static int rows_run(rows_job *job)
{
    const bool dy = job->data[ROWS_DY], writes = job->writes, wide = job->is_f64;
    ek_parallel_body *const body = dy     ? wide ? rows_gradient_f64 : rows_gradient_f32
                                   : wide ? rows_apply_f64
                                          : rows_apply_f32;
    const int64_t elements = job->groups * job->size,
                  parts = job->adds && job->pieces > 1 ? 2 * job->runs * job->pieces : 0,
                  sums = job->data[ROWS_DWEIGHT] ? 2 * job->blocks * elements : 0,
                  own = parts && dy && !job->product ? 2 * job->runs : 0,
                  tasks = job->blocks * job->groups * job->pieces,
                  grain = 1 + ROWS_GRAIN / (job->block * job->piece);
    job->room_nbytes = (size_t)(parts + sums + own) * sizeof(double);
    if (job->room_nbytes > 0) {
        const int rc = ek_dev_alloc(job->dev, job->room_nbytes, EK_MEMORY_WORKSPACE, &job->room);
        if (rc < 0)
            return rows_end(job, rc);
        job->parts = job->room;
        job->by_element = sums ? job->parts + parts : NULL;
        job->product = own ? job->parts + parts + sums : job->product;
        job->sum = own && job->mean ? job->parts + parts + sums + job->runs : job->sum;
    }
    if (parts) {
        job->writes = false;
        ek_parallel_for(job->dev, tasks, grain, body, job);
        ek_parallel_for(job->dev, job->runs, 1 + ROWS_GRAIN / job->pieces,
                        wide ? rows_join_parts_f64 : rows_join_parts_f32, job);
        job->adds = false;
        job->writes = writes;
    }
    if (job->adds || writes)
        ek_parallel_for(job->dev, tasks, grain, body, job);
    if (sums)
        ek_parallel_for(job->dev, elements, 1 + ROWS_GRAIN / job->blocks,
                        wide ? rows_join_blocks_f64 : rows_join_blocks_f32, job);
    return rows_end(job, 0);
}

int ek_norm_runs(ek_dev *dev, ek_tensor *y, ek_tensor *mean, ek_tensor *invstd,
                 const ek_norm_args *args, double eps)
{
    rows_job job;
    EK_TRY(rows_begin(&job, dev, args, mean ? mean : args->mean, invstd ? invstd : args->invstd, y,
                      &(const ek_norm_sums){0}));
    job.eps = eps;
    job.adds = invstd;
    job.writes = y;
    return rows_run(&job);
}

/* A sum of 16 bits is rounded before it is normalised, and a gradient before it is added to the
 * residual. */
int ek_host_norm_rows(ek_dev *dev, ek_tensor *y, ek_tensor *mean, ek_tensor *invstd,
                      const ek_norm_args *args, double eps)
{
    ek_norm_args own = *args;
    if (ek_count(y) == 0)
        return 0;
    if (own.residual && ek_dtype_is_narrow(y->dtype)) {
        EK_TRY(ek_host_binary(dev, EK_BINARY_ADD, own.total, own.x, own.residual, 1));
        own.x = own.total;
        own.residual = own.total = NULL;
    }
    EK_TRY(ek_norm_runs(dev, y, mean, invstd, &own, eps));
    return 1;
}

int ek_norm_runs_gradient(ek_dev *dev, ek_tensor *dx, const ek_norm_sums *sums,
                          const ek_norm_args *args, bool adds)
{
    rows_job job;
    EK_TRY(rows_begin(&job, dev, args, args->mean, args->invstd, dx, sums));
    job.adds = adds;
    job.writes = dx || sums->dweight;
    job.sum = rows_address(sums->sum ? sums->sum : args->sum);
    job.product = rows_address(sums->sum ? sums->sum_xhat : args->sum_xhat);
    return rows_run(&job);
}

int ek_host_norm_rows_gradient(ek_dev *dev, ek_tensor *dx, const ek_norm_sums *sums,
                               const ek_norm_args *args)
{
    ek_norm_args own = *args;
    const bool apart = dx && own.residual && ek_dtype_is_narrow(dx->dtype);
    if (ek_count(own.x) == 0)
        return 0;
    own.residual = apart ? NULL : own.residual;
    EK_TRY(ek_norm_runs_gradient(dev, dx, sums, &own, dx));
    if (apart)
        EK_TRY(ek_host_binary(dev, EK_BINARY_ADD, dx, dx, args->residual, 1));
    return 1;
}

#else /* for each EK_REAL */

/* Returns the value of a run, which is `otherwise` if the values are absent. */
EK_FORMULA EK_REAL EK_NAME(rows_value)(const void *values, int64_t run, EK_REAL otherwise)
{
    return values ? ((const EK_REAL *)values)[run] : otherwise;
}

/* ---- moments and y ---- */

/* Returns the sum of x - center, or with `square` of its square. */
EK_FORMULA double EK_NAME(rows_power)(const EK_REAL *x, int64_t size, double center, bool square)
{
    double lane[ROWS_LANES] = {0};
    int64_t i = 0;
    for (; i + ROWS_LANES <= size; i += ROWS_LANES)
        for (int j = 0; j < ROWS_LANES; j++) {
            const double d = (double)x[i + j] - center;
            lane[j] += square ? d * d : d;
        }
    for (int j = 0; i + j < size; j++) {
        const double d = (double)x[i + j] - center;
        lane[j] += square ? d * d : d;
    }
    for (int width = ROWS_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/* Stores a value of a run, if values are wanted. */
EK_FORMULA void EK_NAME(rows_put)(void *values, int64_t run, double value)
{
    if (values)
        ((EK_REAL *)values)[run] = (EK_REAL)value;
}

/* Stores two moments, or with dy two sums: of a run, or of a piece of it if piece isn't negative
 * and runs have several. */
EK_FORMULA void EK_NAME(rows_keep)(const rows_job *job, int64_t run, int64_t piece,
                                   const double two[2], bool dy)
{
    const double square = two[1] / (double)job->size;
    if (piece >= 0 && job->pieces > 1) {
        job->parts[2 * (run * job->pieces + piece)] = two[0];
        job->parts[2 * (run * job->pieces + piece) + 1] = two[1];
    } else if (dy) {
        EK_NAME(rows_put)(job->sum, run, two[0]);
        EK_NAME(rows_put)(job->product, run, two[1]);
    } else {
        EK_NAME(rows_put)(job->mean, run, two[0]);
        EK_NAME(rows_put)(job->invstd, run, job->eps < 0 ? square : 1 / sqrt(square + job->eps));
    }
}

/* Writes x + residual to the total. */
EK_FORMULA void EK_NAME(rows_add_residual)(const rows_job *job, int64_t at, int64_t n)
{
    const EK_REAL *x = (const EK_REAL *)job->data[ROWS_X] + at;
    const EK_REAL *residual = (const EK_REAL *)job->data[ROWS_RESIDUAL] + at;
    const uint16_t *narrow = (const uint16_t *)job->data[ROWS_RESIDUAL] + at;
    EK_REAL *restrict total = (EK_REAL *)job->data[ROWS_TOTAL] + at;
    if (ek_dtype_is_narrow(job->narrow))
        for (int64_t i = 0; i < n; i++)
            total[i] = x[i] + (EK_REAL)ek_float_of_narrow(job->narrow, narrow[i]);
    else
        for (int64_t i = 0; i < n; i++)
            total[i] = x[i] + residual[i];
}

/* Blocks of y are single samples. */
EK_MULTIVERSION
static void EK_NAME(rows_apply)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        const rows_task task = rows_task_of(job, i);
        const int64_t run = task.first * job->groups + task.group, n = task.n,
                      at = task.first * job->groups * job->size + task.at;
        const EK_REAL *x = (const EK_REAL *)job->data[ROWS_X] + at;
        if (job->adds && job->data[ROWS_RESIDUAL])
            EK_NAME(rows_add_residual)(job, at, n);
        if (job->data[ROWS_TOTAL])
            x = (const EK_REAL *)job->data[ROWS_TOTAL] + at;
        if (job->adds) {
            double moments[2] = {0, 0};
            if (job->mean)
                moments[0] = EK_NAME(rows_power)(x, n, 0, false) / (double)n;
            moments[1] = EK_NAME(rows_power)(x, n, moments[0], true);
            EK_NAME(rows_keep)(job, run, task.piece, moments, false);
        }
        if (!job->writes)
            continue;
        const EK_REAL center = EK_NAME(rows_value)(job->mean, run, 0),
                      scale = EK_NAME(rows_value)(job->invstd, run, 1);
        const EK_REAL *weight = job->data[ROWS_WEIGHT], *bias = job->data[ROWS_BIAS];
        EK_REAL *restrict y = (EK_REAL *)job->data[ROWS_OUT] + at;
        weight = weight ? weight + task.at : NULL;
        bias = bias ? bias + task.at : NULL;
        if (weight && bias)
            for (int64_t k = 0; k < n; k++)
                y[k] = (x[k] - center) * scale * weight[k] + bias[k];
        else
            for (int64_t k = 0; k < n; k++)
                y[k] = (x[k] - center) * scale * (weight ? weight[k] : 1) + (bias ? bias[k] : 0);
    }
}

/* ---- sums and dx ---- */

/* gcc 12 keeps arrays of lanes in memory here, but not vectors. */
typedef EK_REAL EK_NAME(rows_vector)
    __attribute__((vector_size(32), aligned(sizeof(EK_REAL)), may_alias));

/* Adds weight dy and weight dy (x - center) of one vector to two sums. */
EK_FORMULA void EK_NAME(rows_sum_vector)(EK_NAME(rows_vector) * sum, EK_NAME(rows_vector) * product,
                                         const EK_REAL *dy, const EK_REAL *x, const EK_REAL *weight,
                                         EK_REAL center)
{
    EK_NAME(rows_vector) g = *(const EK_NAME(rows_vector) *)(const void *)dy;
    if (weight)
        g *= *(const EK_NAME(rows_vector) *)(const void *)weight;
    *sum += g;
    *product += g * (*(const EK_NAME(rows_vector) *)(const void *)x - center);
}

/* Sums weight dy and weight dy (x - center) over a piece. */
EK_FORMULA void EK_NAME(rows_sum)(int64_t n, const EK_REAL *dy, const EK_REAL *x,
                                  const EK_REAL *weight, EK_REAL center, double result[2])
{
    enum { VECTOR = 32 / sizeof(EK_REAL) };
    EK_NAME(rows_vector) sums[2] = {{0}, {0}}, products[2] = {{0}, {0}};
    double sum = 0, product = 0;
    int64_t i = 0;
    for (; i + 2 * VECTOR <= n; i += 2 * VECTOR)
        for (int64_t k = 0; k < 2; k++)
            EK_NAME(rows_sum_vector)
    (&sums[k], &products[k], dy + i + k * VECTOR, x + i + k * VECTOR,
     weight ? weight + i + k * VECTOR : NULL, center);
    for (; i < n; i++) {
        const EK_REAL g = weight ? dy[i] * weight[i] : dy[i];
        sum += (double)g;
        product += (double)(g * (x[i] - center));
    }
    sums[0] += sums[1];
    products[0] += products[1];
    for (int j = 0; j < VECTOR; j++) {
        sum += (double)sums[0][j];
        product += (double)products[0][j];
    }
    result[0] = sum;
    result[1] = product;
}

/* Writes dx = scale weight dy - shift - (x - center) slope, plus the residual. */
EK_FORMULA void EK_NAME(rows_write)(int64_t n, EK_REAL *restrict dx, const EK_REAL *restrict dy,
                                    const EK_REAL *restrict x, const EK_REAL line[4],
                                    const EK_REAL *weight, const EK_REAL *residual)
{
    const EK_REAL center = line[0], scale = line[1], shift = line[2], slope = line[3];
    for (int64_t i = 0; i < n; i++) {
        const EK_REAL v =
            (weight ? scale * weight[i] : scale) * dy[i] - shift - (x[i] - center) * slope;
        dx[i] = residual ? v + residual[i] : v;
    }
}

EK_MULTIVERSION
static void EK_NAME(rows_gradient)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    const int64_t elements = job->groups * job->size;
    EK_REAL products[ROWS_LONGEST], sums[ROWS_LONGEST];
    for (int64_t i = begin; i < end; i++) {
        const rows_task task = rows_task_of(job, i);
        const int64_t n = task.n;
        const bool by_element = job->writes && job->by_element;
        double *into =
            by_element ? job->by_element + task.first / job->block * 2 * elements + task.at : NULL;
        for (int64_t k = 0; k < n && by_element; k++) {
            into[k] = into[elements + k] = 0;
            products[k] = sums[k] = 0;
        }
        for (int64_t sample = task.first; sample < task.last; sample++) {
            const int64_t run = sample * job->groups + task.group, at = sample * elements + task.at;
            const EK_REAL *x = (const EK_REAL *)job->data[ROWS_X] + at;
            const EK_REAL *dy = (const EK_REAL *)job->data[ROWS_DY] + at;
            const EK_REAL *weight = job->data[ROWS_WEIGHT], *residual = job->data[ROWS_RESIDUAL];
            weight = weight ? weight + task.at : NULL;
            const EK_REAL center = EK_NAME(rows_value)(job->mean, run, 0),
                          scale = EK_NAME(rows_value)(job->invstd, run, 1);
            double own[2] = {(double)EK_NAME(rows_value)(job->sum, run, 0),
                             (double)EK_NAME(rows_value)(job->product, run, 0)};
            if (job->adds) {
                if (weight)
                    EK_NAME(rows_sum)(n, dy, x, weight, center, own);
                else
                    EK_NAME(rows_sum)(n, dy, x, NULL, center, own);
                own[1] *= (double)scale;
                EK_NAME(rows_keep)(job, run, task.piece, own, true);
                own[0] = job->mean ? own[0] : 0;
            }
            if (!job->writes)
                continue;
            if (by_element)
                for (int64_t k = 0; k < n; k++) {
                    products[k] += dy[k] * ((x[k] - center) * scale);
                    sums[k] += dy[k];
                }
            const double share = (double)scale / (double)job->size;
            const EK_REAL line[] = {center, scale, (EK_REAL)(share * own[0]),
                                    (EK_REAL)(share * (double)scale * own[1])};
            EK_REAL *dx = job->data[ROWS_OUT] ? (EK_REAL *)job->data[ROWS_OUT] + at : NULL;
            if (dx && weight && residual)
                EK_NAME(rows_write)(n, dx, dy, x, line, weight, residual + at);
            else if (dx && weight)
                EK_NAME(rows_write)(n, dx, dy, x, line, weight, NULL);
            else if (dx)
                EK_NAME(rows_write)(n, dx, dy, x, line, NULL, residual ? residual + at : NULL);
            if (!by_element ||
                ((sample + 1 - task.first) % ROWS_SHORT != 0 && sample + 1 < task.last))
                continue;
            for (int64_t k = 0; k < n; k++) {
                into[k] += (double)products[k];
                into[elements + k] += (double)sums[k];
                products[k] = sums[k] = 0;
            }
        }
    }
}

/* ---- joins ---- */

/* Joins the moments or sums of the pieces of runs [begin, end). */
static void EK_NAME(rows_join_parts)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    const bool dy = job->data[ROWS_DY];
    for (int64_t run = begin; run < end; run++) {
        const double *part = job->parts + 2 * run * job->pieces;
        double sums[2] = {0, 0};
        ek_moments all = {0, 0, 0};
        for (int64_t piece = 0; piece < job->pieces; piece++, part += 2) {
            const int64_t n = ek_smaller(job->piece, job->size - piece * job->piece);
            if (dy) {
                sums[0] += part[0];
                sums[1] += part[1];
            } else {
                all = ek_moments_join(all, (ek_moments){(double)n, part[0], part[1]});
            }
        }
        EK_NAME(rows_keep)(job, run, -1, dy ? sums : (const double[]){all.mean, all.deviation}, dy);
    }
}

/* Stores the sums of the elements [begin, end) over all blocks. */
static void EK_NAME(rows_join_blocks)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    const int64_t elements = job->groups * job->size;
    for (int k = 0; k < 2; k++) {
        EK_REAL *into = job->data[ROWS_DWEIGHT + k];
        double *sums = job->by_element + k * elements;
        for (int64_t block = 1; block < job->blocks; block++)
            for (int64_t i = begin; i < end; i++)
                sums[i] += sums[block * 2 * elements + i];
        for (int64_t i = begin; i < end; i++)
            into[i] = (EK_REAL)sums[i];
    }
}

#endif
