/* collective.c: broadcast and sums of lists by collectives.
 *
 * A sum to one device of N could be N - 1 blocks sent there and added, but then its link carries
 * N - 1 times the data while the others rest. Cut into N slices, each device gets its slice of all
 * others, adds them in the fixed order, and sends the result to the first: less than two times the
 * data on any link (the reduce-scatter and gather of Thakur, Rabenseifner and Gropp, 2005). */
#include "comm/collective.h"

#include <stdlib.h>
#include <string.h>

#include "core/object.h"
#include "kernels/kernels.h"

enum { SLICE_ELEMENTS = 64 }; /* slices begin at multiples */

bool ek_comm_has_collective(ek_dev *const *devs, int devices, int *status)
{
    *status = ek_dev_collective(devs, devices);
    return *status > EK_COLLECTIVE_NONE;
}

/* ---- spread ---- */

static int spread_runs(ek_dev *const *devs, int devices, ek_tensor *const *const *to,
                       ek_tensor *const *from, int count)
{
    void *data[EK_MAX_DEVICES];
    for (int i = 0; i < count;) {
        int length = ek_comm_run_length(to[1] + i, from + i, count - i);
        data[0] = ek_tensor_address(from[i]);
        for (int d = 1; d < devices; d++)
            data[d] = ek_tensor_address(to[d][i]);
        size_t nbytes = ek_comm_run_nbytes(from + i, length);
        if (nbytes > 0)
            EK_TRY(devs[0]->backend->broadcast(devs, devices, data, nbytes));
        i += length;
    }
    return 0;
}

/* Lists of one dtype. Tensors that lie apart, or in another layout, go through one slab. */
static int spread_dtype(ek_dev *const *devs, int devices, ek_tensor *const *const *to,
                        ek_tensor *const *from, int count)
{
    if (ek_comm_run_length(to[1], from, count) == count && ek_is_dense(from[0]) &&
        ek_same_layout(to[1][0], from[0]))
        return spread_runs(devs, devices, to, from, count);
    ek_slab *staging = ek_comm_pack(from, to[1], count);
    int rc = staging ? spread_runs(devs, devices, to, staging->members, count) : ek_error_pending();
    ek_object_release(staging);
    return rc;
}

int ek_comm_spread(ek_dev *const *devs, int devices, ek_tensor *const *const *to,
                   ek_tensor *const *from, int count)
{
    ek_tensor **lists[EK_MAX_DEVICES];
    ek_tensor **work = ek_calloc((size_t)devices * (size_t)count + 1, sizeof *work);
    int rc = 0;
    if (!work)
        return ek_error_pending();
    for (int d = 0; d < devices; d++)
        lists[d] = work + (ptrdiff_t)d * count; /* the first: from */
    for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++) {
        int n = 0;
        for (int i = 0; i < count; i++) {
            if (from[i]->dtype != (ek_dtype)dtype)
                continue;
            lists[0][n] = from[i];
            for (int d = 1; d < devices; d++)
                lists[d][n] = to[d][i];
            n++;
        }
        if (n > 0)
            rc = spread_dtype(devs, devices, (ek_tensor *const *const *)lists, lists[0], n);
    }
    free(work);
    return rc;
}

/* ---- sums ---- */

/* A device's list as one run: itself, or packed. */
typedef struct flat {
    ek_tensor *const *list;
    ek_slab *packed; /* NULL: the list is a run already */
} flat;

static int flatten(ek_tensor *const *list, ek_tensor *const *out, int count, flat *f)
{
    *f = (flat){list, NULL};
    if (ek_comm_run_length(out, list, count) == count && ek_same_layout(out[0], list[0]) &&
        ek_is_dense(list[0]))
        return 0;
    f->packed = ek_comm_pack(list, out, count);
    if (!f->packed)
        return ek_error_pending();
    f->list = f->packed->members;
    return 0;
}

/* Elements [begin, end) of a run as a flat handle. */
static ek_tensor *slice_of(ek_tensor *const *run, int64_t begin, int64_t end)
{
    ek_shape shape = {1, {end - begin}};
    int64_t stride = 1;
    return ek_tensor_member(run[0]->storage, run[0]->dtype, &shape, &stride,
                            run[0]->offset + begin);
}

typedef struct slices {
    ek_dev *const *devs;
    int devices;
    ek_dtype dtype;
    int64_t bounds[EK_MAX_DEVICES + 1];               /* slice j is [bounds[j], bounds[j + 1]) */
    ek_tensor *parts[EK_MAX_DEVICES][EK_MAX_DEVICES]; /* [j][d]: slice j of device d, on device j */
    ek_tensor *sums[EK_MAX_DEVICES];                  /* of slice j, on device j */
} slices;

static void cut(slices *s, int64_t begin, int64_t end)
{
    for (int j = 0; j <= s->devices; j++) {
        int64_t at = (end - begin) / s->devices * j / SLICE_ELEMENTS * SLICE_ELEMENTS;
        s->bounds[j] = j == s->devices ? end : begin + at;
    }
}

static ek_tensor *room(const slices *s, int j)
{
    ek_shape shape = {1, {s->bounds[j + 1] - s->bounds[j]}};
    return ek_tensor_new(s->devs[j], s->dtype, &shape, EK_CONTIGUOUS);
}

static ek_move move_of(ek_tensor *to, ek_tensor *from)
{
    return (ek_move){ek_tensor_dev(to), ek_tensor_dev(from), ek_tensor_address(to),
                     ek_tensor_address(from), ek_comm_nbytes(to)};
}

/* Every device sends slice j to device j. */
static int deal(slices *s, const flat *flats)
{
    size_t most = (size_t)s->devices * (size_t)s->devices;
    ek_move *moves = ek_calloc(most, sizeof *moves);
    int count = 0, rc = moves ? 0 : ek_error_pending();
    for (int j = 0; j < s->devices && rc >= 0; j++) {
        for (int d = 0; d < s->devices && rc >= 0; d++) {
            ek_tensor *own = slice_of(flats[d].list, s->bounds[j], s->bounds[j + 1]);
            s->parts[j][d] = d == j ? own : room(s, j);
            if (!own || !s->parts[j][d])
                rc = ek_error_pending();
            else if (d != j)
                moves[count++] = move_of(s->parts[j][d], own);
        }
    }
    if (rc >= 0)
        rc = s->devs[0]->backend->exchange(moves, count);
    free(moves);
    return rc;
}

/* Device j adds its slice; the first writes where the sum belongs. */
static int add(slices *s, ek_tensor *const *out)
{
    for (int j = 0; j < s->devices; j++) {
        s->sums[j] = j == 0 ? slice_of(out, s->bounds[0], s->bounds[1]) : room(s, j);
        if (!s->sums[j])
            return ek_error_pending();
        if (s->bounds[j + 1] > s->bounds[j])
            EK_TRY(ek_kernels_of(s->sums[j])
                       ->add_n(s->devs[j], 1, &s->sums[j], (const ek_tensor *const *)s->parts[j],
                               s->devices));
    }
    return 0;
}

static int collect(slices *s, ek_tensor *const *out)
{
    ek_move moves[EK_MAX_DEVICES];
    int count = 0;
    for (int j = 1; j < s->devices; j++) {
        ek_tensor *place = slice_of(out, s->bounds[j], s->bounds[j + 1]);
        if (!place)
            return ek_error_pending();
        moves[count++] = move_of(place, s->sums[j]);
    }
    return s->devs[0]->backend->exchange(moves, count);
}

static int sum_by_library(ek_dev *const *devs, int devices, const flat *flats, int64_t elements,
                          ek_tensor *const *out)
{
    void *data[EK_MAX_DEVICES];
    for (int d = 0; d < devices; d++)
        data[d] = ek_tensor_address(flats[d].list[0]);
    return devs[0]->backend->sum(devs, devices, data, ek_tensor_address(out[0]), elements,
                                 out[0]->dtype);
}

static int sum_flats(ek_dev *const *devs, int devices, const flat *flats, int count,
                     ek_tensor *const *out)
{
    size_t nbytes = ek_comm_run_nbytes(out, count);
    int64_t elements = (int64_t)(nbytes / ek_dtype_size(out[0]->dtype));
    if (elements == 0)
        return 0;
    if (ek_dev_collective(devs, devices) == EK_COLLECTIVE_SUMS)
        return sum_by_library(devs, devices, flats, elements, out);
    slices *s = ek_calloc(1, sizeof *s);
    if (!s)
        return ek_error_pending();
    s->devs = devs;
    s->devices = devices;
    s->dtype = out[0]->dtype;
    /* What the devices hold for each other at a time is a buffer's size. */
    int64_t most = EK_COMM_BUFFER_BYTES / (int64_t)ek_dtype_size(s->dtype);
    int rc = 0;
    for (int64_t begin = 0; begin < elements && rc >= 0; begin += most) {
        ek_scope scope = ek_scope_begin();
        cut(s, begin, elements - begin > most ? begin + most : elements);
        rc = deal(s, flats);
        if (rc >= 0)
            rc = add(s, out);
        if (rc >= 0)
            rc = collect(s, out);
        ek_scope_end(&scope);
    }
    free(s);
    return rc;
}

int ek_comm_sum_slices(ek_dev *const *devs, int devices, ek_tensor **const *lists, int count,
                       ek_tensor *const *out)
{
    flat flats[EK_MAX_DEVICES] = {{0}};
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    /* The sums as one run; the first list is laid out as they are. */
    ek_slab *whole = NULL;
    ek_tensor *const *target = out;
    if (ek_comm_run_length(out, out, count) != count || !ek_is_dense(out[0])) {
        whole = ek_slab_new(devs[0], out, count);
        target = whole ? whole->members : NULL;
        rc = whole ? 0 : ek_error_pending();
    }
    for (int d = 0; d < devices && rc >= 0; d++)
        rc = flatten(lists[d], target, count, &flats[d]);
    if (rc >= 0)
        rc = sum_flats(devs, devices, flats, count, target);
    if (rc >= 0 && whole)
        rc = ek_comm_copy_list(out, whole->members, count);
    for (int d = 0; d < devices; d++)
        ek_object_release(flats[d].packed);
    ek_object_release(whole);
    ek_scope_end(&scope);
    ek_memory_set_category(before);
    return rc;
}
