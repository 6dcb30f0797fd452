/* reduce.c: lays a reduction out over threads, and a search for extremes' positions. */
#include "cuda/launches.h"
#include "cuda/runtime.h"
#include "kernels/walk.h"

enum {
    BLOCK = 256,
    FEW = 16,          /* up to this many reduced elements, one thread sums them */
    NARROW = 8,        /* fewer columns use only a small part of a cache line */
    PER_THREAD = 16,   /* least elements of a thread before work is cut into chunks */
    BLOCKS_PER_SM = 8, /* blocks that fill a multiprocessor */
    MOST_CHUNKS = 1024
};

static int64_t reduce_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int reduce_width(int64_t n, int most)
{
    int power = 1;
    while (power < most && power < n)
        power *= 2;
    return power;
}

/* ---- geometry ---- */

/* Splits the dimensions of a walk over x and out into kept and reduced ones. */
static void reduce_split(ek_cuda_reduction *r, const ek_walk *walk)
{
    int64_t shape[2][EK_MAX_DIMS], stride[2][2][EK_MAX_DIMS];
    int ndim[2] = {0, 0}, last = walk->ndim - 1;
    for (int d = 0; d <= last; d++) {
        if (d == last && r->by_columns)
            break;
        int side = walk->stride[1][d] == 0;
        int at = ndim[side]++;
        shape[side][at] = walk->shape[d];
        for (int k = 0; k < 2; k++)
            stride[side][k][at] = walk->stride[k][d];
    }
    ek_cuda_strides_init(&r->kept, 2, ndim[0], shape[0],
                         (const int64_t *[]){stride[0][0], stride[0][1]});
    ek_cuda_strides_init(&r->reduced, 1, ndim[1], shape[1], (const int64_t *[]){stride[1][0]});
}

static int64_t reduced_count(const ek_walk *walk)
{
    int64_t count = 1;
    for (int d = 0; d < walk->ndim; d++)
        count *= walk->stride[1][d] == 0 ? walk->shape[d] : 1;
    return count;
}

/* Returns how many elements one load has: 16 bytes if kernels load the dtype by vectors, else one.
 */
static int reduce_whole_pack(ek_dtype dtype)
{
    return ek_dtype_is_floating(dtype) ? 16 / (int)ek_dtype_size(dtype) : 1;
}

/* Returns true if every row of columns starts at a multiple of 16 bytes. */
static bool reduce_rows_are_aligned(const ek_cuda_reduction *r, int pack)
{
    bool aligned = (uintptr_t)r->x % 16 == 0 && r->column_x == 1 && r->columns % pack == 0;
    for (int d = 0; d < r->kept.ndim; d++)
        aligned = aligned && (r->kept.shape[d] == 1 || r->kept.stride[0][d] % pack == 0);
    for (int d = 0; d < r->reduced.ndim; d++)
        aligned = aligned && (r->reduced.shape[d] == 1 || r->reduced.stride[0][d] % pack == 0);
    return aligned;
}

/* ---- chunks ---- */

/* Cuts the reduced elements into chunks of at least `least` elements, if the `blocks` blocks
 * without chunks would leave half of the device idle. */
static void reduce_cut(ek_cuda_reduction *r, int multiprocessors, int64_t blocks, int64_t least)
{
    int64_t count = r->reduced.count, full = (int64_t)multiprocessors * BLOCKS_PER_SM;
    r->chunk = count;
    r->chunks = 1;
    if (blocks * 2 > full || count < 2 * least)
        return;
    int64_t wanted = reduce_smaller(reduce_smaller(full / blocks, count / least), MOST_CHUNKS);
    if (wanted < 2)
        return;
    r->chunk = (count + wanted - 1) / wanted;
    r->chunk = (r->chunk + 7) / 8 * 8; /* packs stay whole */
    r->chunks = (count + r->chunk - 1) / r->chunk;
}

static void reduce_plan_columns(ek_cuda_reduction *r, int multiprocessors, bool may_cut)
{
    int pack = reduce_whole_pack(r->x_dtype);
    r->pack = r->kind <= EK_REDUCE_SUM_SQUARES && reduce_rows_are_aligned(r, pack) ? pack : 1;
    int64_t across = (r->columns + r->pack - 1) / r->pack;
    r->width = reduce_width(across, 32);
    int64_t blocks = (across + r->width - 1) / r->width * r->kept.count;
    reduce_cut(r, may_cut ? multiprocessors : 0, blocks, (int64_t)BLOCK / r->width * PER_THREAD);
}

static void reduce_plan_rows(ek_cuda_reduction *r, int multiprocessors, bool may_cut, bool inner)
{
    int last = r->reduced.ndim - 1;
    int64_t run = r->reduced.shape[last];
    r->team = ek_cuda_team_for(multiprocessors, r->kept.count, r->reduced.count, inner,
                               EK_CUDA_TEAM_WRITES);
    if (!inner)
        r->team = (ek_cuda_team){.lanes = 1};
    r->runs = r->reduced.ndim == 1 || run >= (int64_t)r->team.lanes * 8;
    r->pack = 1;
    if (r->runs && r->reduced.stride[0][last] == 1 && r->kind <= EK_REDUCE_SUM_SQUARES)
        r->pack = reduce_whole_pack(r->x_dtype);
    int64_t blocks = (r->kept.count * r->team.lanes + BLOCK - 1) / BLOCK;
    if (r->team.lanes == BLOCK)
        reduce_cut(r, may_cut ? multiprocessors : 0, blocks,
                   (int64_t)BLOCK * PER_THREAD * reduce_whole_pack(r->x_dtype));
    else
        reduce_cut(r, 0, blocks, BLOCK);
}

/* Plans a reduction. out_stride is 0 along reduced dimensions only. The caller sets r's
 * kind, dtypes and addresses. */
static void reduce_plan(ek_cuda_reduction *r, int multiprocessors, int ndim, const int64_t *shape,
                        const int64_t *x_stride, const int64_t *out_stride, bool may_cut)
{
    ek_walk walk;
    ek_walk_init_raw(&walk, 2, ndim, shape, (const int64_t *[]){x_stride, out_stride});
    int last = walk.ndim - 1;
    if (walk.count == 1)
        walk.stride[1][last] = 0;
    bool inner_kept = walk.stride[1][last] != 0;
    int64_t reduced = reduced_count(&walk), outputs = walk.count / reduced;
    bool crowded = outputs >= (int64_t)multiprocessors * 1024;
    r->by_columns = inner_kept && reduced > FEW && !(crowded && walk.shape[last] < NARROW);
    if (r->by_columns) {
        r->columns = walk.shape[last];
        r->column_x = walk.stride[0][last];
        r->column_out = walk.stride[1][last];
    }
    reduce_split(r, &walk);
    if (r->by_columns)
        reduce_plan_columns(r, multiprocessors, may_cut);
    else
        reduce_plan_rows(r, multiprocessors, may_cut, !inner_kept);
}

/* ---- both passes ---- */

static ek_dtype reduce_sum_dtype(ek_dtype dtype)
{
    return dtype == EK_F64 ? EK_F64 : ek_dtype_is_floating(dtype) ? EK_F32 : EK_I64;
}

/* Returns the second pass, which reduces the partial results of `first` into its outputs. */
static ek_cuda_reduction reduce_join_of(const ek_cuda_reduction *first, int multiprocessors)
{
    int64_t shape[EK_MAX_DIMS + 2], x_stride[EK_MAX_DIMS + 2], out_stride[EK_MAX_DIMS + 2];
    int ndim = 0;
    for (int d = 0; d < first->kept.ndim; d++) {
        shape[++ndim] = first->kept.shape[d];
        out_stride[ndim] = first->kept.shape[d] == 1 ? 0 : first->kept.stride[1][d];
    }
    if (first->by_columns) {
        shape[++ndim] = first->columns;
        out_stride[ndim] = first->column_out;
    }
    int64_t step = 1;
    for (int d = ndim; d > 0; d--) {
        x_stride[d] = step;
        step *= shape[d];
    }
    shape[0] = first->chunks;
    x_stride[0] = step;
    out_stride[0] = 0;
    ek_cuda_reduction join = {.kind = first->kind == EK_REDUCE_SUM_SQUARES ? EK_REDUCE_SUM
                                                                           : first->kind,
                              .x_dtype = reduce_sum_dtype(first->x_dtype),
                              .out_dtype = first->out_dtype,
                              .out = first->out};
    reduce_plan(&join, multiprocessors, ndim + 1, shape, x_stride, out_stride, false);
    return join;
}

static int reduce_run(ek_dev *dev, ek_cuda_reduction *r)
{
    ek_cuda_reduction join = {.chunks = 0};
    void *partial = NULL;
    size_t nbytes = 0;
    if (r->chunks > 1) {
        int64_t outputs = r->kept.count * (r->by_columns ? r->columns : 1);
        join = reduce_join_of(r, ek_cuda_of(dev)->multiprocessors);
        nbytes = (size_t)(r->chunks * outputs) * ek_dtype_size(join.x_dtype);
        EK_TRY(ek_cuda_scratch(dev, nbytes, &partial));
        join.x = partial;
        r->out = partial;
        r->out_dtype = join.x_dtype;
    }
    ek_cuda_stream stream;
    int rc = ek_cuda_begin(dev, &stream);
    if (rc >= 0) {
        rc = ek_cuda_launch_reduce(&stream, r);
        if (rc == 0 && partial != NULL)
            rc = ek_cuda_launch_reduce(&stream, &join);
        rc = ek_cuda_end(dev, &stream, "reduce", rc);
    }
    if (partial != NULL)
        ek_cuda_scratch_free(dev, partial, nbytes);
    return rc;
}

int ek_cuda_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *out, const ek_tensor *x)
{
    int64_t out_stride[EK_MAX_DIMS] = {0};
    for (int d = 0; d < x->ndim; d++)
        out_stride[d] = out->shape[d] == 1 ? 0 : out->stride[d];
    if (ek_count(out) == 0)
        return 0;
    if (ek_count(x) == 0) {
        double number = 0;
        EK_TRY(ek_reduce_nothing(kind, &number));
        return ek_cuda_fill(dev, out, number);
    }
    ek_cuda_reduction r = {.kind = kind,
                           .x_dtype = x->dtype,
                           .out_dtype = out->dtype,
                           .x = ek_tensor_address(x),
                           .out = ek_tensor_address(out)};
    reduce_plan(&r, ek_cuda_of(dev)->multiprocessors, x->ndim, x->shape, x->stride, out_stride,
                true);
    return reduce_run(dev, &r);
}

int ek_cuda_arg_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *index, const ek_tensor *x,
                       int dim)
{
    if (ek_count(index) == 0)
        return 0;
    int64_t size = ek_arg_reduce_size(kind, x, dim);
    if (size < 0)
        return (int)size;
    ek_cuda_arg_job job = {.smallest = kind == EK_REDUCE_MIN,
                           .dtype = x->dtype,
                           .x = ek_tensor_address(x),
                           .index = ek_tensor_address(index),
                           .size = size,
                           .stride = ek_cuda_stride_along(x, dim)};
    ek_cuda_strides_without(&job.lines, 2, (const ek_tensor *[]){index, x}, NULL, dim);
    job.team = ek_cuda_team_along(ek_cuda_of(dev)->multiprocessors, &job.lines, 1, size, job.stride,
                                  EK_CUDA_TEAM_READS);
    EK_CUDA_RUN(dev, "arg_reduce", ek_cuda_launch_arg_reduce(&stream, &job));
}
