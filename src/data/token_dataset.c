/* token_dataset.c: windows of a long row of tokens, in memory or in a mapped file. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "data/dataset.h"
#include "data/tokens.h"

/* ---- the data set ---- */

typedef struct token_dataset {
    ek_dataset dataset;
    ek_tensor *tensor; /* one reference, or NULL: the tokens are those of a mapped file */
    ek_mapped file;
    const unsigned char *tokens;
    const ek_token_type *type;
    int64_t samples, length, stride;
} token_dataset;

static int64_t tokens_length(ek_dataset *dataset)
{
    return ((token_dataset *)dataset)->samples;
}

/* Writes `length` tokens of a sample to `to`, from its token number `skip` on. */
static void tokens_copy(const token_dataset *self, int64_t sample, int64_t skip, int64_t *to)
{
    int64_t at = sample * self->stride + skip;
    self->type->read(self->tokens + (size_t)at * self->type->nbytes, to, self->length);
}

/* Returns the inputs and the targets of these samples, each of `shape`. */
static ek_value tokens_pair(const token_dataset *self, const int64_t *samples, int64_t count,
                            ek_shape shape, ek_dev *dev)
{
    ek_value pair[2];
    for (int k = 0; k < 2; k++) {
        ek_tensor *tensor = dev ? ek_tensor_new(dev, EK_I64, &shape, EK_CONTIGUOUS) : NULL;
        int64_t *to = tensor ? ek_tensor_address(tensor) : NULL;
        for (int64_t i = 0; to && i < count; i++)
            tokens_copy(self, samples[i], k, to + i * self->length);
        pair[k] = ek_value_of_tensor(tensor);
    }
    return ek_value_list(pair, 2);
}

static ek_value tokens_get(ek_dataset *dataset, int64_t index)
{
    const token_dataset *self = (token_dataset *)dataset;
    return tokens_pair(self, &index, 1, EK_SHAPE(self->length), ek_batch_dev(ek_cpu(), "get"));
}

static ek_value tokens_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                 ek_device device)
{
    const token_dataset *self = (token_dataset *)dataset;
    return tokens_pair(self, samples, count, EK_SHAPE(count, self->length),
                       ek_batch_dev(device, "get_batch"));
}

static void tokens_destroy(ek_dataset *dataset)
{
    token_dataset *self = (token_dataset *)dataset;
    ek_release(self->tensor);
    ek_file_unmap(&self->file);
}

static const ek_dataset_type token_dataset_type = {
    .name = "token_dataset",
    .size = sizeof(token_dataset),
    .length = tokens_length,
    .get = tokens_get,
    .get_batch = tokens_get_batch,
    .destroy = tokens_destroy,
};

/* ---- making ---- */

/* Finds the tokens in the tensor or the file; returns how many there are. */
static int64_t tokens_open(token_dataset *self, const ek_token_options *options)
{
    char text[200];
    ek_tensor *tensor = options->tokens;
    if (tensor && options->path)
        return EK_FAIL(EK_E_INVALID,
                       "token_dataset: tokens and the path %s; one of them says what is read",
                       options->path);
    if (options->type && !options->path)
        return EK_FAIL(EK_E_INVALID,
                       "token_dataset: the type \"%.40s\" is of a file, and there is no path",
                       options->type);
    if (options->path) {
        self->type = ek_token_type_of_file("token_dataset", options->type);
        if (!self->type)
            return ek_error_pending();
        EK_TRY(ek_file_map("token_dataset", options->path, &self->file));
        self->tokens = self->file.bytes;
        if (self->file.nbytes % self->type->nbytes != 0)
            return EK_FAIL(EK_E_FORMAT, "token_dataset: %s has %zu bytes, no multiple of %zu",
                           options->path, self->file.nbytes, self->type->nbytes);
        return (int64_t)(self->file.nbytes / self->type->nbytes);
    }
    EK_TRY(ek_check_given("token_dataset", "the tokens", tensor));
    if (tensor->ndim != 1)
        return EK_FAIL(EK_E_SHAPE, "token_dataset: %s; tokens have one dimension",
                       ek_tensor_text(tensor, text));
    self->type = ek_token_type_of(ek_dtype_name(tensor->dtype));
    if (!self->type)
        return EK_FAIL(EK_E_DTYPE, "token_dataset: %s; tokens are whole numbers",
                       ek_tensor_text(tensor, text));
    if (ek_tensor_dev(tensor)->id.kind != EK_CPU)
        return EK_FAIL(EK_E_DEVICE, "token_dataset: %s; tokens lie on cpu",
                       ek_tensor_text(tensor, text));
    tensor = ek_row_major(tensor, ek_tensor_dev(tensor));
    self->tensor = tensor == options->tokens ? ek_keep(ek_tensor_alias(tensor)) : ek_keep(tensor);
    if (!self->tensor)
        return ek_error_pending();
    self->tokens = ek_tensor_address(self->tensor);
    return ek_count(self->tensor);
}

static int tokens_make(token_dataset *self, const ek_token_options *options)
{
    int64_t length = options->length;
    int64_t stride = options->stride == EK_UNSET ? length : options->stride;
    if (length < 1 || stride < 1)
        return EK_FAIL(EK_E_INVALID,
                       "token_dataset: length %lld and stride %lld; both have to be at least 1",
                       (long long)length, (long long)stride);
    int64_t count = tokens_open(self, options);
    if (count < 0)
        return (int)count;
    if (count <= length)
        return EK_FAIL(EK_E_SHAPE,
                       "token_dataset: %s%s%lld tokens; a sample of length %lld and its target "
                       "need one more than that",
                       options->path ? options->path : "", options->path ? ": " : "",
                       (long long)count, (long long)length);
    self->length = length;
    self->stride = stride;
    self->samples = (count - 1 - length) / stride + 1;
    return 0;
}

ek_dataset *ek_token_dataset_with(ek_token_options options)
{
    ek_dataset *dataset = ek_dataset_new(&token_dataset_type);
    ek_scope scope = ek_scope_begin();
    int rc = dataset ? tokens_make((token_dataset *)dataset, &options) : ek_error_pending();
    ek_scope_end(&scope);
    if (rc < 0) {
        ek_dataset_free(dataset);
        return NULL;
    }
    return dataset;
}
