/* scatter_gather.c: cuts tensors along a dimension and joins them; each is the other's backward. */
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "comm/tree.h"
#include "core/lane.h"
#include "core/staging.h"
#include "core/trace.h"
#include "core/worker.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

/* The attributes of both operations. */
typedef struct chunks {
    ek_dev *whole; /* the device of the joined tensor */
    int dim, count;
    ek_dev *devs[EK_MAX_DEVICES];
    int64_t sizes[EK_MAX_DEVICES];
} chunks;

int ek_comm_chunk_sizes(const char *what, int64_t n, int devices, const int64_t *given,
                        int64_t *sizes)
{
    if (!given && n > 0)
        return ek_chunk_sizes(n, devices, sizes);
    int64_t total = 0;
    for (int i = 0; i < devices; i++) {
        sizes[i] = given ? given[i] : 0;
        if (sizes[i] < 0 || (sizes[i] == 0 && n > 0))
            return EK_FAIL(EK_E_SHAPE, "%s: chunk size %d must be positive, not %lld", what, i,
                           (long long)sizes[i]);
        total = sizes[i] <= INT64_MAX - total ? total + sizes[i] : INT64_MAX;
    }
    if (total == n)
        return devices;
    return EK_FAIL(EK_E_SHAPE,
                   "%s: the chunk sizes don't add up to the tensor's size: their sum is %lld, "
                   "expected is %lld",
                   what, (long long)total, (long long)n);
}

static int scatter_to(ek_tensor *tensor, const chunks *c, const bool *wanted, ek_tensor **out);
static ek_tensor *gather_from(ek_tensor *const *tensors, const chunks *c);

/* ---- scatter ---- */

static int scatter_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const chunks *c = ek_node_attributes(node);
    bool any = false;
    for (int i = 0; i < c->count; i++)
        any = any || gradients[i];
    if (any)
        results[0] = gather_from(gradients, c);
    return any && !results[0] ? ek_error_pending() : 0;
}

static const ek_operation scatter_operation = {.name = "scatter", .backward = scatter_backward};

static ek_tensor *scatter_send_chunk(ek_tensor *part, ek_dev *dev)
{
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "scatter", NULL, dev);
    ek_tensor *there = ek_staging_copy(part, dev);
    ek_span_end(&span);
    return there;
}

/* Chunks of a tensor of the host, which go straight to their devices. */
typedef struct staged_chunks {
    int count;
    ek_dev *devs[EK_MAX_DEVICES];
    ek_tensor *parts[EK_MAX_DEVICES], **sent[EK_MAX_DEVICES];
} staged_chunks;

static int scatter_send_on_worker(void *user, int index)
{
    const staged_chunks *s = user;
    ek_tensor *there = scatter_send_chunk(s->parts[index], s->devs[index]);
    *s->sent[index] = ek_keep(there); /* the scope ends with the job */
    return there ? 0 : ek_error_pending();
}

/* Sends the chunks. If the memory is pageable, each device's worker copies its chunk to pinned
 * buffers, because one thread can't feed several devices. */
static int scatter_send_all(const staged_chunks *s, const ek_tensor *tensor)
{
    const bool alone = s->count < 2 || tensor->storage->pinned_by || ek_section_is_open() ||
                       ek_comm_nbytes(tensor) < EK_COMM_WORKER_BYTES ||
                       ek_thread_self()->modes.flags & EK_MODE_BACKWARD || ek_forked();
    int rc = alone ? 0
                   : ek_jobs_run((ek_dev *const *)s->devs, s->count, scatter_send_on_worker,
                                 (void *)s, NULL);
    for (int i = 0; i < s->count; i++) {
        if (alone)
            *s->sent[i] = scatter_send_chunk(s->parts[i], s->devs[i]);
        else if (*s->sent[i] && !ek_scope_adopt(*s->sent[i]))
            *s->sent[i] = NULL;
        if (rc >= 0 && !*s->sent[i])
            rc = ek_error_pending();
    }
    return rc;
}

/* Makes chunk i on c->devs[i] if wanted[i] (NULL: all chunks). On the tensor's own device the chunk
 * is a view. Chunks of a tensor of the host are staged, so that copying overlaps computing; all
 * other chunks are copied in one exchange. */
static int copy_to_chunks(const ek_tensor *tensor, const chunks *c, const bool *wanted,
                          ek_tensor **out)
{
    ek_move moves[EK_MAX_DEVICES];
    staged_chunks staged = {0};
    int64_t start = 0;
    int count = 0;
    for (int i = 0; i < c->count; start += c->sizes[i++]) {
        out[i] = NULL;
        if (wanted && !wanted[i])
            continue;
        ek_dev *dev = c->devs[i];
        ek_tensor *part = ek_comm_part(tensor, c->dim, start, c->sizes[i]);
        if (part && ek_tensor_dev(part) == dev)
            out[i] = part;
        else if (part && ek_staging_copies(part, dev)) {
            staged.devs[staged.count] = dev;
            staged.parts[staged.count] = part;
            staged.sent[staged.count++] = &out[i];
            continue;
        } else if (part && (out[i] = ek_comm_like(part, dev)))
            moves[count++] = (ek_move){out[i], part};
        if (!out[i])
            return ek_error_pending();
    }
    EK_TRY(scatter_send_all(&staged, tensor));
    return ek_exchange("scatter", moves, count);
}

static int scatter_to(ek_tensor *tensor, const chunks *c, const bool *wanted, ek_tensor **out)
{
    EK_TRY(copy_to_chunks(tensor, c, wanted, out));
    return ek_record_outputs(out, c->count, &scatter_operation,
                             &(const ek_record_options){EK_INPUTS(tensor), EK_ATTRIBUTES(*c)});
}

int ek_scatter(ek_tensor *tensor, const ek_device_list *devices, const int64_t *chunk_sizes,
               int dim, ek_tensor **out)
{
    if (!ek_given("scatter", "tensor", tensor))
        return ek_error_pending();
    EK_TRY(ek_check_pointer("scatter", "the array for the chunks", out));
    chunks c = {.whole = ek_tensor_dev(tensor)};
    EK_TRY(ek_comm_devices("scatter", devices, c.devs));
    c.dim = ek_dimension("scatter", tensor, dim);
    EK_TRY(c.dim);
    c.count =
        ek_comm_chunk_sizes("scatter", tensor->shape[c.dim], devices->count, chunk_sizes, c.sizes);
    EK_TRY(c.count);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_ACTIVATION);
    int rc = scatter_to(tensor, &c, NULL, out);
    ek_memory_set_category(before);
    return rc < 0 ? rc : c.count;
}

/* ---- gather ---- */

static int gather_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const chunks *c = ek_node_attributes(node);
    if (!gradients[0])
        return 0;
    bool wanted[EK_MAX_DEVICES];
    for (int i = 0; i < c->count; i++)
        wanted[i] = ek_node_needs(node, i);
    return scatter_to(gradients[0], c, wanted, results);
}

static const ek_operation gather_operation = {.name = "gather", .backward = gather_backward};

/* Makes an uninitialised tensor for the joined chunks; channels-last if all chunks are
 * channels-last. */
static ek_tensor *chunks_joined(ek_tensor *const *tensors, const chunks *c)
{
    ek_shape shape = {0};
    ek_dtype dtype = EK_F32;
    bool channels_last = true;
    for (int i = 0; i < c->count; i++) {
        if (!tensors[i])
            continue;
        shape = ek_tensor_shape(tensors[i]);
        dtype = tensors[i]->dtype;
        channels_last = channels_last && shape.ndim == 4 &&
                        ek_tensor_is_contiguous(tensors[i], EK_CHANNELS_LAST);
    }
    shape.dims[c->dim] = 0;
    for (int i = 0; i < c->count; i++)
        shape.dims[c->dim] += c->sizes[i];
    return ek_tensor_new(c->whole, dtype, &shape, channels_last ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
}

static int copy_chunks(ek_tensor *whole, ek_tensor *const *tensors, const chunks *c)
{
    ek_move moves[EK_MAX_DEVICES];
    int64_t start = 0;
    int count = 0;
    for (int i = 0; i < c->count; start += c->sizes[i++]) {
        ek_tensor *part = ek_comm_part(whole, c->dim, start, c->sizes[i]);
        if (!part)
            return ek_error_pending();
        if (tensors[i])
            moves[count++] = (ek_move){part, tensors[i]};
        else
            EK_TRY(ek_kernels_of(part)->fill(c->whole, part, 0));
    }
    return ek_exchange("gather", moves, count);
}

/* Joins the chunks on c->whole. A NULL chunk counts as zeros; at least one chunk isn't NULL. */
static ek_tensor *gather_from(ek_tensor *const *tensors, const chunks *c)
{
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "gather", NULL, c->whole);
    ek_tensor *whole = chunks_joined(tensors, c);
    ek_scope scope = ek_scope_begin();
    int rc = whole ? copy_chunks(whole, tensors, c) : ek_error_pending();
    ek_scope_end(&scope);
    ek_span_end(&span);
    if (rc < 0)
        return NULL;
    return EK_RECORD(whole, &gather_operation, .inputs = tensors, .input_count = c->count,
                     EK_ATTRIBUTES(*c));
}

/* Writes the tensors to `parts`. If the first tensor is a scalar, scalars become vectors of one
 * element. */
static int chunks_unsqueezed(ek_tensor *const *tensors, int count, ek_tensor **parts)
{
    EK_TRY(ek_check_pointer("gather", "the array of tensors", tensors));
    for (int i = 0; i < count; i++) {
        if (!tensors[i])
            return EK_FAIL(EK_E_INVALID, "gather: input tensor at index %d is NULL", i);
        EK_TRY(ek_check_alive("gather", "an input", tensors[i]));
        parts[i] = tensors[i]->ndim == 0 && tensors[0]->ndim == 0
                       ? ek_reshape(tensors[i], EK_SHAPE(1))
                       : tensors[i];
        if (!parts[i])
            return ek_error_pending();
    }
    return 0;
}

static int gather_check_part(const ek_tensor *part, const ek_tensor *first, int dim, int index)
{
    char text[200], expected[200];
    bool fits = part->ndim == first->ndim;
    for (int i = 0; fits && i < part->ndim; i++)
        fits = i == dim || part->shape[i] == first->shape[i];
    if (!fits)
        return EK_FAIL(
            EK_E_SHAPE,
            "gather: input tensor at index %d has an invalid shape: it is %s, but has to "
            "fit %s in all dimensions but %d",
            index, ek_tensor_text(part, text), ek_tensor_text(first, expected), dim);
    if (part->dtype != first->dtype)
        return EK_FAIL(EK_E_DTYPE, "gather: input tensor at index %d is %s, but the first is %s",
                       index, ek_tensor_text(part, text), ek_tensor_text(first, expected));
    return 0;
}

ek_tensor *ek_gather(ek_tensor *const *tensors, int count, ek_device destination, int dim)
{
    if (count < 1 || count > EK_MAX_DEVICES)
        return EK_FAIL_NULL(EK_E_INVALID, "gather: 1 to %d tensors are needed, not %d",
                            EK_MAX_DEVICES, count);
    ek_tensor *parts[EK_MAX_DEVICES];
    chunks c = {.whole = ek_dev_get(destination), .count = count};
    if (!c.whole || chunks_unsqueezed(tensors, count, parts) < 0)
        return NULL;
    c.dim = ek_dimension("gather", parts[0], dim);
    if (c.dim < 0)
        return NULL;
    for (int i = 0; i < count; i++) {
        if (gather_check_part(parts[i], parts[0], c.dim, i) < 0)
            return NULL;
        c.devs[i] = ek_tensor_dev(parts[i]);
        c.sizes[i] = parts[i]->shape[c.dim];
    }
    if (count == 1 && c.devs[0] == c.whole)
        return ek_itself(parts[0]);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_tensor *whole = gather_from(parts, &c);
    ek_memory_set_category(before);
    return whole;
}
