/* value.c: values as bytes, broadcast and gathered.
 *
 * A value is a header with its kind, and then a number, the elements of a list or dictionary, or
 * the layout and elements of a tensor. Elements of a tensor are in row-major order and begin at a
 * multiple of 8 bytes. */
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/value.h"
#include "group/collective.h"
#include "group/differentiable.h"
#include "group/world.h"

typedef struct value_header {
    int32_t kind; /* ek_value_kind */
    int16_t per_device, batch;
    int64_t count; /* elements of a list or dictionary, bytes of a key */
} value_header;

enum { VALUE_ALIGNMENT = 8 };

/* ---- writing ---- */

/* Where a value is written. If `bytes` is NULL, the writer counts bytes only. */
typedef struct value_writer {
    const char *what;
    ek_tensor *bytes; /* u8, on cpu */
    size_t at;
} value_writer;

static void value_put(value_writer *writer, const void *data, size_t nbytes)
{
    if (writer->bytes)
        memcpy((char *)ek_tensor_address(writer->bytes) + writer->at, data, nbytes);
    writer->at += nbytes;
}

static void value_pad(value_writer *writer)
{
    static const char zeros[VALUE_ALIGNMENT];
    value_put(writer, zeros, (VALUE_ALIGNMENT - writer->at % VALUE_ALIGNMENT) % VALUE_ALIGNMENT);
}

/* Writes the layout and then the elements of a tensor of any device. */
static int value_put_tensor(value_writer *writer, ek_tensor *tensor)
{
    ek_wire_shape layout = ek_wire_shape_of(tensor);
    value_put(writer, &layout, sizeof layout);
    value_pad(writer);
    if (writer->bytes) {
        ek_shape shape = ek_tensor_shape(tensor);
        int64_t strides[EK_MAX_DIMS];
        ek_strides_of(&shape, EK_CONTIGUOUS, strides);
        ek_tensor *room = ek_tensor_member(writer->bytes->storage, tensor->dtype, &shape, strides,
                                           (int64_t)(writer->at / ek_dtype_size(tensor->dtype)));
        if (!room)
            return ek_error_pending();
        EK_TRY(ek_comm_copy(room, tensor));
        EK_TRY(ek_synchronize(ek_tensor_dev(tensor)->id));
    }
    writer->at += ek_comm_nbytes(tensor);
    return 0;
}

static int value_put_value(value_writer *writer, ek_value value)
{
    int count = ek_value_length(value);
    value_header header = {(int32_t)value.kind, value.per_device, value.batch, count};
    value_pad(writer);
    value_put(writer, &header, sizeof header);
    switch (value.kind) {
    case EK_VALUE_NONE:
        return 0;
    case EK_VALUE_INT:
        value_put(writer, &value.as.integer, sizeof value.as.integer);
        return 0;
    case EK_VALUE_FLOAT:
        value_put(writer, &value.as.floating, sizeof value.as.floating);
        return 0;
    case EK_VALUE_TENSOR:
        return value_put_tensor(writer, value.as.tensor);
    case EK_VALUE_LIST:
    case EK_VALUE_DICT:
        for (int i = 0; i < count; i++) {
            if (value.kind == EK_VALUE_DICT) {
                const char *key = ek_value_key(value, i);
                int64_t nbytes = (int64_t)strlen(key) + 1;
                value_pad(writer);
                value_put(writer, &nbytes, sizeof nbytes);
                value_put(writer, key, (size_t)nbytes);
            }
            EK_TRY(value_put_value(writer, ek_value_at(value, i)));
        }
        return 0;
    case EK_VALUE_ERROR:
        if (ek_error_status() < 0)
            return ek_error_pending();
        break;
    case EK_VALUE_POINTER:
        break;
    }
    return EK_FAIL(EK_E_INVALID,
                   "%s: the value has %s, which means nothing to other processes; tensors, "
                   "numbers, lists, dictionaries and none can be sent",
                   writer->what, ek_value_kind_name(value));
}

/* Returns the value as a tensor of bytes that begins with the number of bytes. In the scope. */
static ek_tensor *value_pack(const char *what, ek_value value)
{
    value_writer writer = {.what = what};
    int64_t nbytes = 0;
    value_put(&writer, &nbytes, sizeof nbytes);
    if (value_put_value(&writer, value) < 0)
        return NULL;
    nbytes = (int64_t)writer.at;
    writer.bytes =
        ek_tensor_new(ek_dev_get(ek_cpu()), EK_U8, &(ek_shape){1, {nbytes}}, EK_CONTIGUOUS);
    if (!writer.bytes)
        return NULL;
    writer.at = 0;
    value_put(&writer, &nbytes, sizeof nbytes);
    return value_put_value(&writer, value) < 0 ? NULL : writer.bytes;
}

/* ---- reading ---- */

typedef struct value_reader {
    const char *what, *data;
    size_t at, nbytes;
} value_reader;

static ek_value value_fail_bytes(const value_reader *reader)
{
    return EK_FAIL_VALUE(
        EK_E_FORMAT,
        "%s: what came is not the bytes of a value; do all ranks run the same program?",
        reader->what);
}

/* Returns the next `nbytes` bytes, or NULL with an error if fewer are left. */
static const char *value_get(value_reader *reader, uint64_t nbytes)
{
    if (nbytes > reader->nbytes - reader->at) {
        value_fail_bytes(reader);
        return NULL;
    }
    const char *data = reader->data + reader->at;
    reader->at += nbytes;
    return data;
}

static int value_get_into(value_reader *reader, void *out, size_t nbytes)
{
    const char *data = value_get(reader, nbytes);
    if (!data)
        return ek_error_pending();
    if (nbytes)
        memcpy(out, data, nbytes);
    return 0;
}

static int value_skip_padding(value_reader *reader)
{
    size_t padding = (VALUE_ALIGNMENT - reader->at % VALUE_ALIGNMENT) % VALUE_ALIGNMENT;
    return value_get(reader, padding) ? 0 : ek_error_pending();
}

/* Returns true if the layout is possible and enough bytes are left for the tensor's elements. */
static bool value_layout_fits(const value_reader *reader, const ek_wire_shape *layout)
{
    if (layout->dtype < 0 || layout->dtype >= EK_DTYPES || layout->ndim < 0 ||
        layout->ndim > EK_MAX_DIMS)
        return false;
    bool empty = false, fits = true;
    for (int d = 0; d < layout->ndim; d++) {
        fits = fits && layout->shape[d] >= 0;
        empty = empty || layout->shape[d] == 0;
    }
    uint64_t most = (reader->nbytes - reader->at) / ek_dtype_size((ek_dtype)layout->dtype);
    for (int d = 0; d < layout->ndim && fits && !empty; d++)
        most /= (uint64_t)layout->shape[d];
    return fits && (empty || most > 0);
}

static ek_value value_get_tensor(value_reader *reader, const value_header *header)
{
    ek_wire_shape layout;
    if (value_get_into(reader, &layout, sizeof layout) < 0 || value_skip_padding(reader) < 0)
        return ek_value_error();
    if (!value_layout_fits(reader, &layout) || header->batch < 0 || header->batch > layout.ndim)
        return value_fail_bytes(reader);
    ek_shape shape = {.ndim = layout.ndim};
    memcpy(shape.dims, layout.shape, (size_t)layout.ndim * sizeof(int64_t));
    ek_tensor *tensor = ek_empty(shape, (ek_dtype)layout.dtype, .device = ek_cpu());
    if (!tensor || value_get_into(reader, ek_tensor_address(tensor), ek_comm_nbytes(tensor)) < 0)
        return ek_value_error();
    return header->batch ? ek_value_batched(ek_value_of_tensor(tensor), header->batch - 1)
                         : ek_value_of_tensor(tensor);
}

static ek_value value_get_value(value_reader *reader);

static int value_get_entry(value_reader *reader, bool keyed, ek_value_entry *entry)
{
    if (keyed) {
        int64_t nbytes = 0;
        EK_TRY(value_skip_padding(reader));
        EK_TRY(value_get_into(reader, &nbytes, sizeof nbytes));
        entry->key = value_get(reader, (uint64_t)nbytes);
        if (!entry->key)
            return ek_error_pending();
        if (nbytes < 1 || entry->key[nbytes - 1]) {
            value_fail_bytes(reader);
            return ek_error_pending();
        }
    }
    entry->value = value_get_value(reader);
    return entry->value.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

static ek_value value_get_elements(value_reader *reader, const value_header *header)
{
    int64_t most = (int64_t)((reader->nbytes - reader->at) / sizeof *header);
    if (header->count < 0 || header->count > most)
        return value_fail_bytes(reader);
    int count = (int)header->count;
    bool keyed = header->kind == EK_VALUE_DICT;
    ek_value_entry *entries = ek_calloc((size_t)count + 1, sizeof *entries);
    ek_value *items = ek_calloc((size_t)count + 1, sizeof *items), made = ek_value_error();
    int rc = entries && items ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc >= 0; i++) {
        rc = value_get_entry(reader, keyed, &entries[i]);
        items[i] = entries[i].value;
    }
    if (rc >= 0)
        made = keyed                ? ek_value_dict(entries, count)
               : header->per_device ? ek_value_per_device(items, count)
                                    : ek_value_list(items, count);
    free(entries);
    free(items);
    return made;
}

static ek_value value_get_value(value_reader *reader)
{
    value_header header;
    ek_value value = ek_value_none();
    if (value_skip_padding(reader) < 0 || value_get_into(reader, &header, sizeof header) < 0)
        return ek_value_error();
    switch (header.kind) {
    case EK_VALUE_NONE:
        return value;
    case EK_VALUE_INT:
        value = ek_value_of_int(0);
        return value_get_into(reader, &value.as.integer, sizeof value.as.integer) < 0
                   ? ek_value_error()
                   : value;
    case EK_VALUE_FLOAT:
        value = ek_value_of_float(0);
        return value_get_into(reader, &value.as.floating, sizeof value.as.floating) < 0
                   ? ek_value_error()
                   : value;
    case EK_VALUE_TENSOR:
        return value_get_tensor(reader, &header);
    case EK_VALUE_LIST:
    case EK_VALUE_DICT:
        return value_get_elements(reader, &header);
    default:
        return value_fail_bytes(reader);
    }
}

/* Returns the value that begins at byte *at, and moves *at to the value's end. In the scope. */
static ek_value value_unpack(const char *what, const ek_tensor *bytes, size_t *at)
{
    value_reader reader = {.what = what,
                           .data = ek_tensor_address(bytes),
                           .nbytes = ek_comm_nbytes(bytes)};
    int64_t nbytes = 0;
    reader.at = *at;
    if (value_get_into(&reader, &nbytes, sizeof nbytes) < 0)
        return ek_value_error();
    if (nbytes < 0 || (size_t)nbytes > reader.nbytes - *at)
        return value_fail_bytes(&reader);
    reader = (value_reader){what, reader.data + *at, sizeof nbytes, (size_t)nbytes};
    *at += (size_t)nbytes;
    return value_get_value(&reader);
}

/* ---- calls ---- */

/* Returns the bytes of rank src, on all ranks. */
static ek_tensor *value_broadcast_bytes(const char *what, ek_value value, int src,
                                        ek_process_group *group)
{
    int root = ek_world_root(what, group, src);
    ek_tensor *bytes = root == group->rank ? value_pack(what, value) : NULL;
    ek_tensor *size = root >= 0 && (bytes || root != group->rank)
                          ? ek_zeros(EK_SHAPE(1), EK_I64, .device = ek_cpu())
                          : NULL;
    if (!size)
        return NULL;
    int64_t *nbytes = ek_tensor_address(size);
    *nbytes = bytes ? bytes->shape[0] : 0;
    if (ek_dist_broadcast(size, src, .group = group) < 0)
        return NULL;
    if (!bytes)
        bytes = ek_empty(EK_SHAPE(*nbytes), EK_U8, .device = ek_cpu());
    return bytes && ek_dist_broadcast(bytes, src, .group = group) >= 0 ? bytes : NULL;
}

typedef struct value_call {
    ek_value value, made;
    int src;
    ek_value *values; /* room for the value of each rank */
} value_call;

static const char value_broadcast_name[] = "broadcast_value",
                  value_gather_name[] = "all_gather_value";

static int value_run_broadcast(ek_process_group *group, void *user)
{
    value_call *call = user;
    size_t at = 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *bytes = value_broadcast_bytes(value_broadcast_name, call->value, call->src, group);
    ek_value made = bytes ? value_unpack(value_broadcast_name, bytes, &at) : ek_value_error();
    call->made = ek_scope_return_value(&scope, made);
    return call->made.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

ek_value ek_dist_broadcast_value(ek_value value, int src, ek_process_group *group)
{
    value_call call = {.value = value, .made = ek_value_none(), .src = src};
    int rc = ek_group_call(value_broadcast_name, group, value_run_broadcast, &call);
    return rc < 0 ? ek_value_error() : call.made;
}

/* Returns all ranks' values as a list. In the scope. */
static ek_value value_gather(ek_value value, ek_process_group *group)
{
    ek_tensor *bytes = value_pack(value_gather_name, value), *all = NULL;
    ek_value list = ek_value_error(), *made = ek_calloc((size_t)group->size, sizeof *made);
    size_t at = 0;
    if (bytes && made)
        all = ek_join(&ek_verb_gather_value, bytes, 0, NULL, group);
    for (int r = 0; all && r < group->size; r++)
        made[r] = value_unpack(value_gather_name, all, &at);
    if (all)
        list = ek_value_list(made, group->size);
    free(made);
    return list;
}

static int value_run_gather(ek_process_group *group, void *user)
{
    const value_call *call = user;
    EK_TRY(ek_check_pointer(value_gather_name, "the array for the values", call->values));
    ek_scope scope = ek_scope_begin();
    ek_value list = ek_scope_return_value(&scope, value_gather(call->value, group));
    if (list.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    for (int r = 0; r < group->size; r++) /* the list in the scope owns the values */
        call->values[r] = ek_value_at(list, r);
    return 0;
}

int ek_dist_all_gather_value(ek_value value, ek_value *values, ek_process_group *group)
{
    value_call call = {.value = value, .values = values};
    return ek_group_call(value_gather_name, group, value_run_gather, &call);
}
