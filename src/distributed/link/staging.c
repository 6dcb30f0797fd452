/* staging.c: see staging.h. */
#include "link/staging.h"

#include <string.h>

#include "comm/exchange.h"
#include "core/staging.h"
#include "core/thread.h"

/* Returns true if the tensor's memory can be sent as it is. A gathered parameter's memory may go.
 */
static bool stage_is_plain(const ek_tensor *tensor)
{
    return !tensor->storage->residence && ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS);
}

ek_tensor *ek_stage_memory(ek_dev *dev, ek_dtype dtype, const ek_shape *shape)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    dev = ek_dev_is_host(dev) ? ek_dev_get(ek_cpu()) : dev;
    ek_tensor *memory = dev ? ek_staging_new(dev, dtype, shape) : NULL;
    ek_memory_set_category(before);
    return memory;
}

/* Returns the tensor, or a row-major copy on its device. In the scope. */
static ek_tensor *stage_flatten(ek_tensor *tensor)
{
    ek_shape shape = ek_tensor_shape(tensor);
    if (stage_is_plain(tensor))
        return tensor;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_tensor *flat = ek_tensor_new(ek_tensor_dev(tensor), tensor->dtype, &shape, EK_CONTIGUOUS);
    ek_memory_set_category(before);
    return flat && ek_comm_copy(flat, tensor) >= 0 ? flat : NULL;
}

static int stage_begin(ek_dist_work_tensor *one, ek_tensor *tensor)
{
    if (ek_dev_is_host(ek_tensor_dev(tensor)))
        return ek_comm_copy(one->memory, tensor);
    ek_tensor *source = stage_flatten(tensor);
    if (!source)
        return ek_error_pending();
    one->source = ek_object_retain(source);
    return ek_staging_fetch(one->memory, source, &one->event);
}

int ek_stage_fill(ek_dist_work_tensor *one, ek_tensor *tensor, ek_tensor *memory)
{
    one->memory = ek_object_retain(memory);
    ek_scope scope = ek_scope_begin();
    int rc = stage_begin(one, tensor);
    ek_scope_end(&scope);
    if (rc < 0)
        ek_stage_close(one);
    return rc;
}

int ek_stage_open(ek_dist_work_tensor *one, ek_tensor *tensor, bool sends)
{
    ek_shape shape = ek_tensor_shape(tensor);
    if (ek_dev_is_host(ek_tensor_dev(tensor)) && stage_is_plain(tensor)) {
        one->memory = ek_object_retain(tensor);
        return 0;
    }
    ek_scope scope = ek_scope_begin();
    ek_tensor *memory = ek_stage_memory(ek_tensor_dev(tensor), tensor->dtype, &shape);
    int rc = memory ? 0 : ek_error_pending();
    if (memory && sends)
        rc = ek_stage_fill(one, tensor, memory);
    else
        one->memory = ek_object_retain(memory);
    ek_scope_end(&scope);
    return rc;
}

int ek_stage_ready(const ek_dist_work_tensor *one)
{
    return one->source ? ek_dev_event_done(ek_tensor_dev(one->source), one->event) : 1;
}

int ek_dist_work_staged(const ek_dist_work *work)
{
    int ready = 1;
    for (int i = 0; i < work->count && ready > 0; i++)
        ready = ek_stage_ready(&work->tensors[i]);
    return ready;
}

int ek_stage_deliver(ek_tensor *to, const ek_tensor *memory)
{
    ek_dev *dev = ek_tensor_dev(to);
    ek_event *event = NULL;
    ek_shape shape = ek_tensor_shape(to);
    if (ek_dev_is_host(dev) || !ek_dev_is_host(ek_tensor_dev(memory)))
        return ek_comm_copy(to, memory);
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_tensor *flat =
        stage_is_plain(to) ? to : ek_tensor_new(dev, to->dtype, &shape, EK_CONTIGUOUS);
    ek_memory_set_category(before);
    int rc = flat ? ek_staging_deliver(flat, memory, &event) : ek_error_pending();
    if (rc >= 0 && flat != to)
        rc = ek_comm_copy(to, flat);
    ek_dev_free_event(dev, event);
    ek_scope_end(&scope);
    return rc;
}

void ek_stage_close(ek_dist_work_tensor *one)
{
    if (one->source) {
        ek_dev_wait_event(ek_tensor_dev(one->source), EK_STREAM_COMPUTE, one->event);
        ek_dev_free_event(ek_tensor_dev(one->source), one->event);
    }
    ek_object_release(one->source);
    ek_object_release(one->memory);
    one->source = one->memory = NULL;
    one->event = NULL;
}
