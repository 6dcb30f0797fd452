/* sort.c: positions in sorted order along one dimension, and searches in sorted lines.
 *
 * A line is read as pairs of a key (kernels/sort_key.h) and a position. Radix sort orders the pairs
 * by the bytes of their keys, from the last byte on, and keeps equal keys in the order of their
 * positions. If only a few first positions are wanted, a heap keeps the best pairs so far. */
#include <string.h>

#include "core/bits.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/sort_key.h"
#include "kernels/walk.h"

enum {
    GRAIN = 16384,
    BUCKETS = 256,
    FEW = 48,  /* lines up to this length are sorted by insertion */
    SHARE = 8, /* a heap is used for at most 1 / SHARE of a line */
    HEAP = 4096
};

typedef struct sort_pair {
    uint64_t key;
    int64_t at;
} sort_pair;

typedef struct sort_job {
    ek_walk lines; /* over all dimensions but dim; operands: index, x */
    int64_t *index;
    const void *x;
    ek_dtype dtype;
    int64_t size, count; /* elements of a line, and how many positions are wanted */
    int64_t index_stride, x_stride;
    uint64_t flip; /* all ones for descending order */
    int64_t parts;
    sort_pair *room; /* 2 size pairs for each part */
} sort_job;

static bool sort_pair_is_less(sort_pair a, sort_pair b)
{
    return a.key < b.key || (a.key == b.key && a.at < b.at);
}

/* ---- keys ---- */

#define READ_KEYS(type, key)                               \
    for (int64_t i = 0; i < job->size; i++) {              \
        type value = ((const type *)x)[i * job->x_stride]; \
        pairs[i] = (sort_pair){(key) ^ flip, i};           \
    }

static void sort_read(const sort_job *job, int64_t offset, sort_pair *pairs)
{
    const char *x = (const char *)job->x + offset * (int64_t)ek_dtype_size(job->dtype);
    uint64_t flip = job->flip;
    switch (job->dtype) {
    case EK_F32:
        READ_KEYS(float, ek_sort_key_f32(value))
        break;
    case EK_F64:
        READ_KEYS(double, ek_sort_key_f64(value))
        break;
    case EK_BF16:
        READ_KEYS(uint16_t, ek_sort_key_16(ek_float_of_bf16(value), value))
        break;
    case EK_I64:
        READ_KEYS(int64_t, ek_sort_key_i64(value))
        break;
    case EK_F16:
        READ_KEYS(uint16_t, ek_sort_key_16(ek_float_of_f16(value), value))
        break;
    case EK_I32:
        READ_KEYS(int32_t, ek_sort_key_i64(value))
        break;
    case EK_U8:
        READ_KEYS(uint8_t, value)
        break;
    case EK_BOOL:
        READ_KEYS(uint8_t, value != 0)
        break;
    }
}

/* ---- sorting pairs ---- */

static void sort_insert(sort_pair *pairs, int64_t size)
{
    for (int64_t i = 1; i < size; i++) {
        sort_pair pair = pairs[i];
        int64_t to = i;
        for (; to > 0 && pair.key < pairs[to - 1].key; to--)
            pairs[to] = pairs[to - 1];
        pairs[to] = pair;
    }
}

/* Sorts by the bytes of each key's distance from the smallest key. A byte that is equal in all
 * pairs is skipped. Returns `pairs` or `other`, whichever has the result. */
static sort_pair *sort_by_radix(sort_pair *pairs, sort_pair *other, int64_t size)
{
    int64_t counts[8][BUCKETS] = {{0}};
    uint64_t low = pairs[0].key, high = low;
    int bytes = 0;
    for (int64_t i = 0; i < size; i++) {
        low = pairs[i].key < low ? pairs[i].key : low;
        high = pairs[i].key > high ? pairs[i].key : high;
    }
    while (bytes < 8 && (high - low) >> 8 * bytes)
        bytes++;
    for (int64_t i = 0; i < size; i++)
        for (int byte = 0; byte < bytes; byte++)
            counts[byte][(pairs[i].key - low) >> 8 * byte & 0xff]++;
    for (int byte = 0; byte < bytes; byte++) {
        int64_t *count = counts[byte], place = 0;
        if (count[(pairs[0].key - low) >> 8 * byte & 0xff] == size)
            continue;
        for (int i = 0; i < BUCKETS; i++) {
            int64_t here = count[i];
            count[i] = place;
            place += here;
        }
        for (int64_t i = 0; i < size; i++)
            other[count[(pairs[i].key - low) >> 8 * byte & 0xff]++] = pairs[i];
        sort_pair *swap = pairs;
        pairs = other;
        other = swap;
    }
    return pairs;
}

static sort_pair *sort_all(sort_pair *pairs, sort_pair *other, int64_t size)
{
    if (size > FEW)
        return sort_by_radix(pairs, other, size);
    sort_insert(pairs, size);
    return pairs;
}

/* Restores a heap with its largest pair on top, after the pair at `root` has changed. */
static void sort_sink(sort_pair *heap, int64_t count, int64_t root)
{
    sort_pair pair = heap[root];
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        child += child + 1 < count && sort_pair_is_less(heap[child], heap[child + 1]);
        if (!sort_pair_is_less(pair, heap[child]))
            break;
        heap[root] = heap[child];
    }
    heap[root] = pair;
}

/* Moves the smallest `count` pairs to the front, in order. Later pairs have larger positions, so
 * that a pair with the key of the heap's top isn't smaller than the top. */
static void sort_first(sort_pair *pairs, int64_t count, int64_t size)
{
    for (int64_t root = count / 2 - 1; root >= 0; root--)
        sort_sink(pairs, count, root);
    for (int64_t i = count; i < size; i++)
        if (pairs[i].key < pairs[0].key) {
            pairs[0] = pairs[i];
            sort_sink(pairs, count, 0);
        }
    for (int64_t last = count - 1; last > 0; last--) {
        sort_pair pair = pairs[last];
        pairs[last] = pairs[0];
        pairs[0] = pair;
        sort_sink(pairs, last, 0);
    }
}

static void sort_line(const sort_job *job, int64_t index_offset, int64_t x_offset, sort_pair *pairs)
{
    sort_read(job, x_offset, pairs);
    if (job->count <= job->size / SHARE && job->count <= HEAP)
        sort_first(pairs, job->count, job->size);
    else
        pairs = sort_all(pairs, pairs + job->size, job->size);
    int64_t *index = job->index + index_offset;
    for (int64_t i = 0; i < job->count; i++)
        index[i * job->index_stride] = pairs[i].at;
}

static void sort_part(void *context, int64_t begin, int64_t end)
{
    const sort_job *job = context;
    for (int64_t part = begin; part < end; part++) {
        int64_t line = ek_part_of(job->lines.count, part, job->parts);
        int64_t last = ek_part_of(job->lines.count, part + 1, job->parts);
        ek_cursor cursor;
        ek_cursor_init(&job->lines, &cursor, line);
        for (; line < last; line++) {
            sort_line(job, cursor.offset[0], cursor.offset[1], job->room + 2 * part * job->size);
            ek_cursor_advance(&job->lines, &cursor, 1);
        }
    }
}

int ek_host_argsort(ek_dev *dev, ek_tensor *index, const ek_tensor *x, int dim, bool descending)
{
    int64_t shape[EK_MAX_DIMS], lines;
    if (ek_count(index) == 0)
        return 0;
    for (int d = 0; d < x->ndim; d++)
        shape[d] = d == dim ? 1 : x->shape[d];
    sort_job job; /* not zeroed: its walk is long */
    ek_walk_init_raw(&job.lines, 2, x->ndim, shape, (const int64_t *[]){index->stride, x->stride});
    lines = job.lines.count;
    job.index = ek_tensor_address(index);
    job.x = ek_tensor_address(x);
    job.dtype = x->dtype;
    job.size = x->ndim == 0 ? 1 : x->shape[dim];
    job.count = x->ndim == 0 ? 1 : index->shape[dim];
    job.index_stride = x->ndim == 0 ? 1 : index->stride[dim];
    job.x_stride = x->ndim == 0 ? 1 : x->stride[dim];
    job.flip = descending ? UINT64_MAX : 0;
    job.parts = ek_smaller(ek_smaller(lines, ek_parallel_threads(dev)),
                           ek_divide_up(lines * job.size, GRAIN));
    size_t nbytes = (size_t)(2 * job.parts * job.size) * sizeof(sort_pair);
    void *room;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &room));
    job.room = room;
    ek_parallel_for(dev, job.parts, 1, sort_part, &job);
    ek_dev_free(dev, room, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* ---- searchsorted ---- */

typedef struct search_job {
    ek_walk walk; /* operands: out, values, and the sorted lines' begins */
    int64_t *out;
    const char *values, *sorted;
    ek_dtype dtype;
    int64_t size, stride; /* of a sorted line */
    bool right;
} search_job;

/* Finds the first position whose element is at least the value; with `right`, the first whose
 * element is larger. A NaN is larger than all numbers, as in PyTorch. */
static int64_t search_one(const search_job *job, const ek_cursor *cursor)
{
    const bool integers = job->dtype == EK_I64;
    const int64_t size = (int64_t)ek_dtype_size(job->dtype);
    const char *at = job->values + cursor->offset[1] * size,
               *sorted = job->sorted + cursor->offset[2] * size;
    const int64_t integer = integers ? *(const int64_t *)at : 0;
    const double real = integers ? 0 : ek_element_double(at, job->dtype);
    int64_t low = 0, high = job->size;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const char *there = sorted + middle * job->stride * size;
        bool ends;
        if (integers) {
            const int64_t v = *(const int64_t *)there;
            ends = job->right ? v > integer : v >= integer;
        } else {
            const double v = ek_element_double(there, job->dtype);
            ends = job->right ? v > real : v >= real;
        }
        if (ends)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void search_part(void *context, int64_t begin, int64_t end)
{
    const search_job *job = context;
    ek_cursor cursor;
    ek_cursor_init(&job->walk, &cursor, begin);
    for (; begin < end; begin++) {
        job->out[cursor.offset[0]] = search_one(job, &cursor);
        ek_cursor_advance(&job->walk, &cursor, 1);
    }
}

int ek_host_searchsorted(ek_dev *dev, ek_tensor *out, const ek_tensor *sorted,
                         const ek_tensor *values, bool right)
{
    int64_t begins[EK_MAX_DIMS] = {0};
    int last = sorted->ndim - 1;
    for (int d = 0; last > 0 && d < last; d++)
        begins[d] = sorted->stride[d];
    search_job job; /* not zeroed: its walk is long */
    ek_walk_init_raw(&job.walk, 3, out->ndim, out->shape,
                     (const int64_t *[]){out->stride, values->stride, begins});
    job.out = ek_tensor_address(out);
    job.values = ek_tensor_address(values);
    job.sorted = ek_tensor_address(sorted);
    job.dtype = values->dtype;
    job.size = sorted->shape[last];
    job.stride = sorted->stride[last];
    job.right = right;
    if (ek_count(out) > 0)
        ek_parallel_for(dev, job.walk.count, GRAIN / 16, search_part, &job);
    return 0;
}
