/* pack.c: see pack.h. Tensors may be any views, between which other elements lie, so that each is
 * copied by itself. */
#include "train/pack.h"

#include "comm/exchange.h"
#include "evenkeel/tensor.h"

ek_device ek_common_device(ek_tensor *const *tensors, int count)
{
    ek_dev *dev = ek_tensor_dev(tensors[0]);
    for (int i = 1; i < count; i++)
        if (ek_tensor_dev(tensors[i]) != dev)
            return ek_cpu();
    return ek_dev_is_host(dev) ? ek_cpu() : dev->id;
}

/* Elements of the memory that a tensor takes. */
static int64_t pack_pitch(ek_dtype dtype, const ek_tensor *tensor)
{
    if (dtype != EK_U8)
        return ek_count(tensor);
    return ((int64_t)ek_comm_nbytes(tensor) + EK_COMM_ALIGNMENT - 1) / EK_COMM_ALIGNMENT *
           EK_COMM_ALIGNMENT;
}

int ek_pack_open(ek_pack *pack, ek_dtype dtype, ek_tensor *const *tensors, int count)
{
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        total += pack_pitch(dtype, tensors[i]);
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_device device = ek_common_device(tensors, count);
    ek_tensor *memory = dtype == EK_U8 ? ek_zeros(EK_SHAPE(total), dtype, .device = device)
                                       : ek_empty(EK_SHAPE(total), dtype, .device = device);
    *pack = (ek_pack){ek_object_retain(memory), tensors, count};
    ek_memory_set_category(before);
    ek_scope_end(&scope);
    return memory ? 0 : ek_error_pending();
}

void ek_pack_close(ek_pack *pack)
{
    ek_object_release(pack->memory);
    *pack = (ek_pack){0};
}

/* The place of a tensor, row-major, from element `at` of the memory on. In the scope. */
static ek_tensor *pack_place(const ek_pack *pack, const ek_tensor *tensor, int64_t at)
{
    ek_shape shape = ek_tensor_shape(tensor);
    int64_t strides[EK_MAX_DIMS], bytes = at * (int64_t)ek_dtype_size(pack->memory->dtype);
    ek_strides_of(&shape, EK_CONTIGUOUS, strides);
    return ek_tensor_member(pack->memory->storage, tensor->dtype, &shape, strides,
                            bytes / (int64_t)ek_dtype_size(tensor->dtype));
}

static int pack_copy(const ek_pack *pack, bool back, const char *what)
{
    int64_t at = 0;
    bool waits = !back && ek_dev_is_host(ek_tensor_dev(pack->memory));
    for (int i = 0; i < pack->count; i++) {
        ek_tensor *tensor = pack->tensors[i];
        ek_scope scope = ek_scope_begin();
        ek_tensor *place = pack_place(pack, tensor, at);
        int rc =
            place ? ek_comm_copy(back ? tensor : place, back ? place : tensor) : ek_error_pending();
        ek_scope_end(&scope);
        EK_TRY(rc);
        if (waits)
            EK_TRY(ek_synchronize(ek_tensor_dev(tensor)->id));
        if (back)
            ek_tensor_written(tensor, what);
        at += pack_pitch(pack->memory->dtype, tensor);
    }
    return 0;
}

int ek_pack_fill(const ek_pack *pack)
{
    return pack_copy(pack, false, NULL);
}

int ek_pack_deliver(const ek_pack *pack, const char *what)
{
    return pack_copy(pack, true, what);
}
