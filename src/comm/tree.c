/* tree.c: looks at nested values, cuts them for devices and joins them. */
#include "comm/tree.h"

#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "core/value.h"
#include "ops/ops.h"

/* ---- looking ---- */

/* Returns the first tensor in the value, as a value; EK_VALUE_NONE if there is none. */
static ek_value tree_first(ek_value value)
{
    ek_value first = value.kind == EK_VALUE_TENSOR ? value : ek_value_none();
    for (int i = 0; i < ek_value_length(value) && first.kind == EK_VALUE_NONE; i++)
        first = tree_first(ek_value_at(value, i));
    return first;
}

ek_tensor *ek_tree_first(ek_value value)
{
    return tree_first(value).as.tensor;
}

int64_t ek_tree_batch_size(ek_value value, int dim)
{
    const ek_value first = tree_first(value);
    const ek_tensor *tensor = first.as.tensor;
    if (!tensor || tensor->ndim == 0)
        return -1;
    dim = ek_dimension("batch size", tensor, ek_value_batch_dim(first, dim));
    return dim < 0 ? dim : tensor->shape[dim];
}

static int tree_look_at_tensor(ek_value value, int dim, ek_tree_survey *survey)
{
    const ek_tensor *tensor = value.as.tensor;
    char text[200];
    if (tensor->ndim == 0)
        return EK_FAIL(
            EK_E_SHAPE,
            "scatter: a tensor without dimensions cannot be cut; pass it as a number, or "
            "one per device with EK_SCATTERED");
    dim = ek_dimension("scatter", tensor, ek_value_batch_dim(value, dim));
    EK_TRY(dim);
    if (survey->size >= 0 && survey->size != tensor->shape[dim])
        return EK_FAIL(
            EK_E_SHAPE,
            "scatter: %s has size %lld along dimension %d, but another tensor of the call "
            "has %lld; all must have one batch size, or be scattered with EK_SCATTERED; a batch "
            "in another dimension is marked with ek_value_batched",
            ek_tensor_text(tensor, text), (long long)tensor->shape[dim], dim,
            (long long)survey->size);
    survey->size = tensor->shape[dim];
    return 0;
}

static int tree_look_at_parts(ek_value list, int dim, ek_tree_survey *survey)
{
    int parts = ek_value_length(list);
    if (parts < 1 || parts > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_SHAPE, "scatter: a scattered list of %d elements", parts);
    if (survey->parts && survey->parts != parts)
        return EK_FAIL(EK_E_SHAPE, "scatter: scattered lists of %d and of %d elements",
                       survey->parts, parts);
    survey->parts = parts;
    bool placed = true, sized = true;
    int64_t sizes[EK_MAX_DEVICES];
    for (int i = 0; i < parts; i++) {
        ek_value item = ek_value_at(list, i);
        placed = placed && ek_tree_first(item);
        sizes[i] = sized ? ek_tree_batch_size(item, dim) : -1;
        if (sizes[i] < -1)
            return (int)sizes[i];
        sized = sizes[i] >= 0; /* false: the element has no size along dim */
    }
    if (placed && survey->placed.kind == EK_VALUE_NONE)
        survey->placed = list;
    for (int i = 0; i < parts && sized; i++) {
        if (survey->sizes_known && survey->sizes[i] != sizes[i])
            return EK_FAIL(
                EK_E_SHAPE,
                "scatter: element %d of a scattered list has batch size %lld, of another "
                "one %lld",
                i, (long long)sizes[i], (long long)survey->sizes[i]);
        survey->sizes[i] = sizes[i];
    }
    survey->sizes_known = survey->sizes_known || sized;
    return 0;
}

int ek_tree_look(ek_value value, int dim, ek_tree_survey *survey)
{
    if (value.kind == EK_VALUE_ERROR || (value.kind == EK_VALUE_TENSOR && !value.as.tensor)) {
        EK_FAIL(EK_E_INVALID, "scatter: an input is an error");
        return ek_error_pending();
    }
    if (value.kind == EK_VALUE_TENSOR)
        return tree_look_at_tensor(value, dim, survey);
    if (value.per_device)
        return tree_look_at_parts(value, dim, survey);
    for (int i = 0; i < ek_value_length(value); i++)
        EK_TRY(ek_tree_look(ek_value_at(value, i), dim, survey));
    return 0;
}

/* ---- scatter ---- */

/* How one value is cut. For each part a walk replaces each tensor, and each scattered list, by its
 * piece for that part. The first walk cuts the pieces of all parts. Pieces of tensors are marked
 * with the dimension along which they were cut (ek_value_batched), so that modules can refuse
 * pieces that they would misread. */
typedef struct tree_cut {
    ek_device_list devices; /* one device per part */
    const int64_t *sizes;   /* sizes of the chunks of a tensor */
    int dim;
    ek_value *cuts; /* pieces by place in the walk, then by part */
    int room;
    int part, place; /* the walk's part, and the place where it is */
} tree_cut;

static int tree_cut_all(tree_cut *cut, ek_value value)
{
    int parts = cut->devices.count;
    ek_tensor *chunks[EK_MAX_DEVICES];
    const int dim = ek_value_batch_dim(value, cut->dim);
    EK_TRY(ek_grow(&cut->cuts, &cut->room, (cut->place + 1) * parts));
    if (!value.per_device)
        EK_TRY(ek_scatter(value.as.tensor, &cut->devices, cut->sizes, dim, chunks));
    for (int p = 0; p < parts; p++) {
        ek_value *own = &cut->cuts[cut->place * parts + p];
        *own = value.per_device
                   ? ek_value_to_device(ek_value_at(value, p), cut->devices.devices[p], cut->dim)
                   : ek_value_batched(ek_value_of_tensor(chunks[p]), dim);
        if (own->kind == EK_VALUE_ERROR)
            return ek_error_pending();
    }
    return 0;
}

static bool tree_cut_part(ek_value *value, void *user)
{
    tree_cut *cut = user;
    if (value->kind != EK_VALUE_TENSOR && !value->per_device)
        return false;
    int rc = cut->part == 0 ? tree_cut_all(cut, *value) : 0;
    *value = rc < 0 ? ek_value_error() : cut->cuts[cut->place++ * cut->devices.count + cut->part];
    return true;
}

/* Writes the sizes of the chunks of the value's tensors and returns how many parts there are. */
static int tree_cut_plan(const ek_tree_survey *survey, int devices, const int64_t *given,
                         int64_t *sizes)
{
    if (survey->parts > devices)
        return EK_FAIL(EK_E_SHAPE, "scatter: a scattered list of %d elements for %d devices",
                       survey->parts, devices);
    if (survey->parts == 0)
        return survey->size < 0
                   ? devices
                   : ek_comm_chunk_sizes("scatter", survey->size, devices, given, sizes);
    if (survey->size < 0)
        return survey->parts;
    /* Tensors are cut like the lists that are scattered already. */
    if (!given && survey->sizes_known)
        given = survey->sizes;
    int64_t total = 0;
    for (int p = 0; given && p < survey->parts; p++)
        total += sizes[p] = given[p];
    if (given && total != survey->size)
        return EK_FAIL(EK_E_SHAPE,
                       "scatter: the elements of a scattered list have batch sizes that add up to "
                       "%lld, but a tensor to be cut has %lld; a wrapper's .dim says which "
                       "dimension is the batch, and ek_value_batched for a tensor with another",
                       (long long)total, (long long)survey->size);
    int parts =
        given ? survey->parts : ek_comm_chunk_sizes("scatter", survey->size, devices, NULL, sizes);
    if (parts >= 0 && parts != survey->parts)
        return EK_FAIL(
            EK_E_SHAPE,
            "scatter: a tensor is cut into %d chunks, but a scattered list has %d elements", parts,
            survey->parts);
    return parts;
}

int ek_tree_scatter(ek_value value, const ek_tree_survey *survey, const ek_device_list *devices,
                    const int64_t *chunk_sizes, int dim, ek_value *out)
{
    int64_t sizes[EK_MAX_DEVICES];
    int parts = tree_cut_plan(survey, devices->count, chunk_sizes, sizes), rc = parts;
    tree_cut cut = {.devices = *devices, .sizes = sizes, .dim = dim};
    cut.devices.count = parts;
    for (int p = 0; p < parts && rc >= 0; p++) {
        cut.part = p;
        cut.place = 0;
        out[p] = ek_value_map(value, tree_cut_part, &cut);
        rc = out[p].kind == EK_VALUE_ERROR ? ek_error_pending() : parts;
    }
    free(cut.cuts);
    return rc;
}

int ek_scatter_value(ek_value value, const ek_device_list *devices, const int64_t *chunk_sizes,
                     int dim, ek_value *out)
{
    ek_dev *devs[EK_MAX_DEVICES];
    ek_tree_survey survey = {.size = -1};
    EK_TRY(ek_comm_devices("scatter", devices, devs));
    EK_TRY(ek_check_pointer("scatter", "the array for the parts", out));
    EK_TRY(ek_tree_look(value, dim, &survey));
    return ek_tree_scatter(value, &survey, devices, chunk_sizes, dim, out);
}

/* ---- gather ---- */

/* Where a gather puts its result, and along which dimension it joins. */
typedef struct tree_join {
    ek_device device;
    int dim;
} tree_join;

static int tree_join_values(const ek_value *values, int count, const tree_join *to,
                            ek_value *joined);

/* Joins numbers to a vector on the destination. */
static int tree_join_numbers(const ek_value *values, int count, const tree_join *to,
                             ek_value *joined)
{
    int64_t integers[EK_MAX_DEVICES];
    double floats[EK_MAX_DEVICES];
    bool whole = values[0].kind == EK_VALUE_INT;
    for (int i = 0; i < count; i++) {
        integers[i] = values[i].as.integer;
        floats[i] = values[i].as.floating;
    }
    *joined =
        ek_value_of_tensor(ek_from_data(whole ? (void *)integers : floats, EK_SHAPE(count),
                                        .dtype = whole ? EK_I64 : EK_F64, .device = to->device));
    return 0;
}

/* Finds element `index` of every container: by position in lists, by the first container's key in
 * dictionaries. */
static int tree_join_elements(const ek_value *values, int count, int index, ek_value *out)
{
    for (int i = 0; i < count; i++) {
        int at = index, length = ek_value_length(values[i]);
        const char *key = values[0].kind == EK_VALUE_DICT ? ek_value_key(values[0], index) : NULL;
        for (at = key ? 0 : index; key && at < length; at++)
            if (strcmp(ek_value_key(values[i], at), key) == 0)
                break;
        if (at == length)
            return EK_FAIL(EK_E_INVALID, "gather: output %d has no key \"%s\", but output 0 has", i,
                           key);
        out[i] = ek_value_at(values[i], at);
    }
    return 0;
}

static int tree_join_containers(const ek_value *values, int count, const tree_join *to,
                                ek_value *joined)
{
    int length = ek_value_length(values[0]);
    for (int i = 1; i < count; i++)
        if (ek_value_length(values[i]) != length)
            return EK_FAIL(EK_E_SHAPE, "gather: output %d is %s of %d, but output 0 is one of %d",
                           i, ek_value_kind_name(values[i]), ek_value_length(values[i]), length);
    ek_value *items = ek_calloc((size_t)length + 1, sizeof *items);
    int rc = items ? 0 : ek_error_pending();
    for (int k = 0; k < length && rc >= 0; k++) {
        ek_value parts[EK_MAX_DEVICES];
        rc = tree_join_elements(values, count, k, parts);
        if (rc >= 0)
            rc = tree_join_values(parts, count, to, &items[k]);
    }
    if (rc >= 0)
        *joined = ek_value_like(values[0], items);
    free(items);
    return rc;
}

/* Returns the dimension of the value's batch (its mark, else `otherwise`). If the value is a
 * tensor, a negative dimension is replaced by the equal dimension from 0 on. */
static int tree_batch_dim(ek_value value, int otherwise)
{
    int dim = ek_value_batch_dim(value, otherwise);
    return dim < 0 && value.kind == EK_VALUE_TENSOR ? dim + value.as.tensor->ndim : dim;
}

static int tree_join_values(const ek_value *values, int count, const tree_join *to,
                            ek_value *joined)
{
    ek_tensor *tensors[EK_MAX_DEVICES];
    ek_value_kind kind = values[0].kind;
    const int dim = tree_batch_dim(values[0], to->dim);
    for (int i = 0; i < count; i++) {
        if (values[i].kind == EK_VALUE_ERROR) {
            EK_FAIL(EK_E_INVALID, "gather: output %d is an error", i);
            return ek_error_pending();
        }
        if (values[i].kind != kind)
            return EK_FAIL(EK_E_INVALID, "gather: output %d is %s, but output 0 is %s", i,
                           ek_value_kind_name(values[i]), ek_value_kind_name(values[0]));
        if (kind == EK_VALUE_POINTER && values[i].as.pointer != values[0].as.pointer)
            return EK_FAIL(EK_E_INVALID,
                           "gather: output %d is another pointer than output 0; pointers "
                           "cannot be joined",
                           i);
        if (tree_batch_dim(values[i], to->dim) != dim)
            return EK_FAIL(EK_E_SHAPE,
                           "gather: output %d has its batch in dimension %d, but output 0 in "
                           "dimension %d",
                           i, tree_batch_dim(values[i], to->dim), dim);
        tensors[i] = kind == EK_VALUE_TENSOR ? values[i].as.tensor : NULL;
    }
    int rc = 0;
    *joined = kind == EK_VALUE_POINTER ? values[0] : ek_value_none();
    if (kind == EK_VALUE_TENSOR)
        *joined = ek_value_with_tensor(values[0], ek_gather(tensors, count, to->device, dim));
    else if (kind == EK_VALUE_LIST || kind == EK_VALUE_DICT)
        rc = tree_join_containers(values, count, to, joined);
    else if (kind == EK_VALUE_INT || kind == EK_VALUE_FLOAT)
        rc = tree_join_numbers(values, count, to, joined);
    return rc < 0 || joined->kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

ek_value ek_gather_value(const ek_value *values, int count, ek_device destination, int dim)
{
    ek_value joined;
    int rc = ek_check_pointer("gather", "the array of values", values);
    if (count < 1 || count > EK_MAX_DEVICES)
        rc = EK_FAIL(EK_E_INVALID, "gather: 1 to %d values are needed, not %d", EK_MAX_DEVICES,
                     count);
    if (rc >= 0)
        rc = tree_join_values(values, count, &(tree_join){destination, dim}, &joined);
    return rc < 0 ? ek_value_error() : joined;
}

/* ---- to one device ---- */

static ek_value tree_join_list(ek_value list, const tree_join *to)
{
    ek_value items[EK_MAX_DEVICES];
    int count = ek_value_length(list);
    if (count < 1 || count > EK_MAX_DEVICES)
        return EK_FAIL_VALUE(EK_E_SHAPE, "a scattered list of %d elements", count);
    for (int i = 0; i < count; i++)
        items[i] = ek_value_at(list, i);
    return count == 1 ? ek_value_to_device(items[0], to->device, to->dim)
                      : ek_gather_value(items, count, to->device, to->dim);
}

static bool tree_move_part(ek_value *value, void *user)
{
    const tree_join *to = user;
    if (value->kind == EK_VALUE_TENSOR)
        *value = ek_value_with_tensor(*value, ek_to_device(value->as.tensor, to->device));
    else if (value->per_device)
        *value = tree_join_list(*value, to);
    else
        return false;
    return true;
}

ek_value ek_value_to_device(ek_value value, ek_device device, int dim)
{
    return ek_value_map(value, tree_move_part, &(tree_join){device, dim});
}
