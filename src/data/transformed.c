/* transformed.c: data sets with transforms applied to one tensor of each sample.
 *
 * Rows of batches go one by one from the raw batch through the whole chain into the batch that is
 * given, which lies on the device already. The raw batch is made on cpu: on the device it would
 * count as memory in use there, and be cached after. So only what no transform changes is copied
 * once more where the device is another: labels, most often. */
#include <stdlib.h>
#include <string.h>

#include "core/value.h"
#include "data/dataset.h"
#include "data/transform_chain.h"

typedef struct transformed {
    ek_dataset dataset;
    ek_dataset *of;
    int field;
    char *key; /* NULL: by field */
    ek_transform **transforms;
    int count;
} transformed;

static int64_t transformed_length(ek_dataset *dataset)
{
    return ek_dataset_length(((transformed *)dataset)->of);
}

/* ---- the element that is transformed ---- */

enum { ITSELF = -1 };

static bool is_leaf(ek_value value)
{
    return value.kind == EK_VALUE_TENSOR || value.kind == EK_VALUE_INT ||
           value.kind == EK_VALUE_FLOAT;
}

static int find_key(const transformed *self, ek_value sample, int *at)
{
    if (sample.kind != EK_VALUE_DICT)
        return EK_FAIL(EK_E_INVALID,
                       "\"%s\" is transformed, and the sample is %s; a dictionary is "
                       "needed",
                       self->key, ek_value_kind_name(sample));
    for (*at = 0; *at < ek_value_length(sample); ++*at)
        if (strcmp(ek_value_key(sample, *at), self->key) == 0)
            return 0;
    return EK_FAIL(EK_E_INVALID, "\"%s\" is transformed, and the sample has no such element",
                   self->key);
}

/* Where the element is in a sample, or batch. */
static int find(const transformed *self, ek_value sample, int *at)
{
    if (self->key)
        return find_key(self, sample, at);
    *at = self->field;
    if (sample.kind == EK_VALUE_LIST && self->field < ek_value_length(sample))
        return 0;
    if (sample.kind == EK_VALUE_LIST)
        return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is a list of %d",
                       self->field, ek_value_length(sample));
    *at = ITSELF;
    if (is_leaf(sample) && self->field == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is %s%s", self->field,
                   ek_value_kind_name(sample),
                   sample.kind == EK_VALUE_DICT ? "; ek_transformed_key transforms its elements"
                                                : "");
}

static ek_value element_of(ek_value sample, int at)
{
    return at == ITSELF ? sample : ek_value_at(sample, at);
}

/* Numbers count as tensors of no dimension. */
static ek_tensor *tensor_of(ek_value element)
{
    if (element.kind == EK_VALUE_INT)
        return ek_from_data(&element.as.integer, ek_scalar_shape(), EK_I64);
    if (element.kind == EK_VALUE_FLOAT)
        return ek_from_data(&element.as.floating, ek_scalar_shape(), EK_F64);
    if (element.kind == EK_VALUE_TENSOR)
        return element.as.tensor;
    EK_FAIL(EK_E_INVALID, "what is transformed is %s; tensors and numbers are",
            ek_value_kind_name(element));
    return NULL;
}

/* `like` with other items. */
static ek_value nest_of(ek_value like, const ek_value *items)
{
    int count = ek_value_length(like);
    if (like.kind == EK_VALUE_LIST)
        return ek_value_list(items, count);
    ek_value_entry *entries = ek_calloc((size_t)count, sizeof *entries);
    if (!entries)
        return ek_value_error();
    for (int i = 0; i < count; i++)
        entries[i] = (ek_value_entry){.key = ek_value_key(like, i), .value = items[i]};
    ek_value nest = ek_value_dict(entries, count);
    free(entries);
    return nest;
}

/* The sample with `tensor` in place of what was there. */
static ek_value replaced(ek_value sample, int at, ek_tensor *tensor)
{
    if (!tensor)
        return ek_value_error();
    if (at == ITSELF)
        return ek_value_of_tensor(tensor);
    ek_value *items = ek_calloc((size_t)ek_value_length(sample), sizeof *items);
    if (!items)
        return ek_value_error();
    for (int i = 0; i < ek_value_length(sample); i++)
        items[i] = i == at ? ek_value_of_tensor(tensor) : ek_value_at(sample, i);
    ek_value result = nest_of(sample, items);
    free(items);
    return result;
}

/* ---- samples ---- */

static ek_value transformed_get(ek_dataset *dataset, int64_t index)
{
    const transformed *self = (const transformed *)dataset;
    ek_value sample = ek_dataset_get(self->of, index);
    int at;
    if (sample.kind == EK_VALUE_ERROR || find(self, sample, &at) < 0)
        return ek_value_error();
    ek_tensor *tensor = tensor_of(element_of(sample, at));
    if (!tensor)
        return ek_value_error();
    return replaced(sample, at, ek_transform_apply(self->transforms, self->count, tensor, NULL));
}

/* ---- batches ---- */

static int check_rows(const ek_tensor *rows, int64_t count)
{
    char text[200];
    if (rows->ndim >= 1 && rows->shape[0] == count)
        return 0;
    return EK_FAIL(EK_E_SHAPE, "a batch of %lld samples is %s; as many rows are needed",
                   (long long)count, ek_tensor_text(rows, text));
}

static ek_tensor *new_batch(ek_dev *dev, const ek_array *row, int64_t count)
{
    char text[200];
    if (row->shape.ndim == EK_MAX_DIMS) {
        EK_FAIL(EK_E_SHAPE, "samples become %s; a batch of them has more than %d dimensions",
                ek_array_text(row, text), EK_MAX_DIMS);
        return NULL;
    }
    ek_shape shape = {.ndim = row->shape.ndim + 1, .dims = {count}};
    memcpy(shape.dims + 1, row->shape.dims, (size_t)row->shape.ndim * sizeof *shape.dims);
    return ek_tensor_new(dev, row->dtype, &shape, EK_CONTIGUOUS);
}

static int run_rows(const ek_chain *chain, const ek_tensor *rows, ek_tensor *batch,
                    const int64_t *samples)
{
    const ek_array *row = ek_chain_result(chain);
    size_t in_nbytes = (size_t)ek_shape_count(&chain->steps[0].shape) * ek_dtype_size(rows->dtype);
    size_t out_nbytes = (size_t)ek_shape_count(&row->shape) * ek_dtype_size(row->dtype);
    const char *in = ek_tensor_address(rows);
    char *out = ek_tensor_address(batch);
    for (int64_t i = 0; i < rows->shape[0]; i++, in += in_nbytes, out += out_nbytes) {
        int before = ek_error_status();
        int rc = ek_chain_run(chain, in, out, NULL);
        if (rc < 0)
            ek_error_prefix(before, "sample %lld", (long long)samples[i]);
        EK_TRY(rc);
    }
    return 0;
}

/* Row by row, in their order: random numbers are drawn as when samples are asked for one by one. */
static ek_tensor *transform_rows(const transformed *self, ek_tensor *rows, const int64_t *samples,
                                 int64_t count, ek_dev *dev)
{
    ek_chain chain;
    if (check_rows(rows, count) < 0 || !(rows = ek_row_major(rows, ek_tensor_dev(rows))))
        return NULL;
    ek_shape row = {.ndim = rows->ndim - 1};
    memcpy(row.dims, rows->shape + 1, (size_t)row.ndim * sizeof *row.dims);
    if (ek_chain_open(&chain, self->transforms, self->count, rows->dtype, &row) < 0)
        return NULL;
    ek_tensor *batch = new_batch(dev, ek_chain_result(&chain), count);
    if (batch && run_rows(&chain, rows, batch, samples) < 0)
        batch = NULL;
    ek_chain_close(&chain);
    return batch;
}

/* The transformed sets around one whose batch is made, the innermost first. */
typedef struct around {
    const transformed *set;
    const struct around *next;
} around;

static bool same_element(const transformed *a, const transformed *b)
{
    return a->key && b->key ? strcmp(a->key, b->key) == 0
                            : !a->key && !b->key && a->field == b->field;
}

static bool transformed_again(const transformed *self, const around *outer)
{
    for (; outer; outer = outer->next)
        if (same_element(self, outer->set))
            return true;
    return false;
}

static const ek_dataset_type rows_type;

/* What is transformed, for the last time, is written on `dev`; the rest lies on cpu. *raw says
 * whether there was a batch of what is not transformed yet. */
static ek_value make_batch(transformed *self, const around *outer, const int64_t *samples,
                           int64_t count, ek_dev *dev, bool *raw)
{
    const around here = {self, outer};
    int at;
    ek_value batch;
    if (self->of->type == &rows_type) {
        batch = make_batch((transformed *)self->of, &here, samples, count, dev, raw);
    } else {
        batch = ek_dataset_get_batch(self->of, samples, count, ek_cpu());
        *raw = batch.kind != EK_VALUE_ERROR;
    }
    if (batch.kind == EK_VALUE_ERROR || find(self, batch, &at) < 0)
        return ek_value_error();
    ek_tensor *rows = tensor_of(element_of(batch, at));
    ek_dev *to = transformed_again(self, outer) ? ek_dev_get(ek_cpu()) : dev;
    if (!rows || !to)
        return ek_value_error();
    return replaced(batch, at, transform_rows(self, rows, samples, count, to));
}

/* All tensors of a value on `dev`. */
static ek_value moved(ek_value value, ek_dev *dev)
{
    int count = ek_value_length(value);
    if (value.kind == EK_VALUE_TENSOR) {
        ek_tensor *tensor = ek_row_major(value.as.tensor, dev);
        return tensor ? ek_value_of_tensor(tensor) : ek_value_error();
    }
    if (count == 0)
        return value;
    ek_value *items = ek_calloc((size_t)count, sizeof *items);
    ek_value result = items ? value : ek_value_error();
    for (int i = 0; i < count && result.kind != EK_VALUE_ERROR; i++) {
        items[i] = moved(ek_value_at(value, i), dev);
        if (items[i].kind == EK_VALUE_ERROR)
            result = items[i];
    }
    if (result.kind != EK_VALUE_ERROR)
        result = nest_of(value, items);
    free(items);
    return result;
}

/* Samples of several data sets, one after another, may be no batch before they are transformed. */
static bool differ(int status)
{
    return status == EK_E_SHAPE || status == EK_E_DTYPE;
}

static ek_value transformed_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                      ek_device device)
{
    ek_dev *dev = ek_batch_dev(device, "get_batch");
    int before = ek_error_status();
    bool raw = false;
    if (!dev)
        return ek_value_error();
    ek_value batch = make_batch((transformed *)dataset, NULL, samples, count, dev, &raw);
    if (batch.kind == EK_VALUE_ERROR && !raw && !before && differ(ek_error_status())) {
        ek_error_clear();
        return ek_dataset_batch_by_samples(dataset, samples, count, device);
    }
    if (batch.kind == EK_VALUE_ERROR || device.kind == EK_CPU)
        return batch;
    return moved(batch, dev);
}

/* ---- making ---- */

static void free_all(ek_transform *const *transforms, int count)
{
    for (int i = 0; transforms && i < count; i++)
        ek_transform_free(transforms[i]);
}

static void transformed_destroy(ek_dataset *dataset)
{
    transformed *self = (transformed *)dataset;
    free_all(self->transforms, self->count);
    free(self->transforms);
    free(self->key);
    ek_dataset_free(self->of);
}

/* Of data sets that give rows at once. Samples of others, pictures of files, may differ in shape
 * until they are transformed: those are transformed one by one and collated. */
static const ek_dataset_type rows_type = {.name = "transformed",
                                          .size = sizeof(transformed),
                                          .length = transformed_length,
                                          .get = transformed_get,
                                          .get_batch = transformed_get_batch,
                                          .destroy = transformed_destroy};
static const ek_dataset_type samples_type = {.name = "transformed",
                                             .size = sizeof(transformed),
                                             .length = transformed_length,
                                             .get = transformed_get,
                                             .destroy = transformed_destroy};

/* Owns nothing yet. */
static transformed *new_set(const ek_dataset *of, int field, const char *key,
                            ek_transform *const *transforms, int count)
{
    if (ek_dataset_given(of, "transformed") < 0 ||
        ek_transforms_check("transformed", transforms, count) < 0)
        return NULL;
    if (field < 0) {
        EK_FAIL(EK_E_INVALID, "transformed: field %d; fields count from 0", field);
        return NULL;
    }
    transformed *self =
        (transformed *)ek_dataset_new(of->type->get_batch ? &rows_type : &samples_type);
    if (!self)
        return NULL;
    self->field = field;
    self->key = key ? ek_strdup(key) : NULL;
    self->transforms = ek_calloc((size_t)count, sizeof(ek_transform *));
    if (self->transforms && (self->key || !key))
        return self;
    ek_dataset_free(&self->dataset);
    return NULL;
}

static ek_dataset *make(ek_dataset *of, int field, const char *key, ek_transform *const *transforms,
                        int count)
{
    transformed *self = new_set(of, field, key, transforms, count);
    if (!self) {
        free_all(transforms, count);
        ek_dataset_free(of);
        return NULL;
    }
    self->of = of;
    for (; self->count < count; self->count++)
        self->transforms[self->count] = transforms[self->count];
    return &self->dataset;
}

ek_dataset *ek_transformed_of(ek_dataset *dataset, int field, ek_transform *const *transforms,
                              int count)
{
    return make(dataset, field, NULL, transforms, count);
}

ek_dataset *ek_transformed_key_of(ek_dataset *dataset, const char *key,
                                  ek_transform *const *transforms, int count)
{
    if (key)
        return make(dataset, 0, key, transforms, count);
    if (ek_dataset_given(dataset, "transformed_key") == 0)
        EK_FAIL(EK_E_INVALID, "transformed_key: the key is NULL");
    free_all(transforms, count);
    ek_dataset_free(dataset);
    return NULL;
}
