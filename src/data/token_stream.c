/* token_stream.c: windows of a file of tokens, read from beginning to end. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"
#include "data/dataset.h"
#include "data/stream.h"
#include "data/tokens.h"

typedef struct token_stream {
    ek_dataset dataset;
    char *path; /* owned */
    const ek_token_type *type;
    int64_t length;
} token_stream;

/* The file's stream, and the bytes read for a window. The last token of a window is kept, because
 * the next window begins with it. */
typedef struct token_cursor {
    ek_byte_stream stream;
    ek_bytes bytes;
} token_cursor;

static void *tokens_open(ek_dataset *dataset, int64_t epoch)
{
    token_cursor *cursor = ek_calloc(1, sizeof *cursor);
    (void)epoch;
    if (cursor &&
        ek_byte_stream_open(&cursor->stream, "token_stream", ((token_stream *)dataset)->path) < 0) {
        free(cursor);
        return NULL;
    }
    return cursor;
}

static void tokens_close(ek_dataset *dataset, void *user)
{
    token_cursor *cursor = user;
    (void)dataset;
    ek_byte_stream_close(&cursor->stream);
    free(cursor->bytes.bytes);
    free(cursor);
}

/* Reads up to a whole window, and the token after it. Returns 1, 0 if the file ends before, or a
 * negative status. */
static int tokens_fill(const token_stream *self, token_cursor *cursor)
{
    size_t size = self->type->nbytes, wanted = ((size_t)self->length + 1) * size;
    ek_bytes *bytes = &cursor->bytes;
    if (bytes->nbytes < wanted)
        EK_TRY(ek_byte_stream_append(&cursor->stream, wanted - bytes->nbytes, bytes));
    if (bytes->nbytes == wanted)
        return 1;
    if (bytes->nbytes % size != 0)
        return EK_FAIL(EK_E_FORMAT, "token_stream: %s ends within a token of %zu bytes", self->path,
                       size);
    return 0;
}

static void tokens_advance(const token_stream *self, token_cursor *cursor)
{
    size_t size = self->type->nbytes;
    memmove(cursor->bytes.bytes, cursor->bytes.bytes + (size_t)self->length * size, size);
    cursor->bytes.nbytes = size;
}

static int tokens_next(ek_dataset *dataset, void *user, ek_value *sample)
{
    const token_stream *self = (const token_stream *)dataset;
    token_cursor *cursor = user;
    ek_value pair[2];
    int rc = tokens_fill(self, cursor);
    if (rc <= 0)
        return rc;
    for (int k = 0; k < 2; k++) {
        const ek_shape shape = EK_SHAPE(self->length);
        ek_dev *dev = ek_dev_get(ek_cpu());
        ek_tensor *tensor = dev ? ek_tensor_new(dev, EK_I64, &shape, EK_CONTIGUOUS) : NULL;
        if (tensor)
            self->type->read(cursor->bytes.bytes + (size_t)k * self->type->nbytes,
                             ek_tensor_address(tensor), self->length);
        pair[k] = ek_value_of_tensor(tensor);
    }
    *sample = ek_value_list(pair, 2);
    tokens_advance(self, cursor);
    return sample->kind == EK_VALUE_ERROR ? ek_error_pending() : 1;
}

static int64_t tokens_skip(ek_dataset *dataset, void *user, int64_t count)
{
    const token_stream *self = (const token_stream *)dataset;
    int64_t skipped = 0;
    int rc = 1;
    while (skipped < count && (rc = tokens_fill(self, user)) > 0) {
        tokens_advance(self, user);
        skipped++;
    }
    return rc < 0 ? rc : skipped;
}

static void tokens_destroy(ek_dataset *dataset)
{
    free(((token_stream *)dataset)->path);
}

static const ek_dataset_type token_stream_type = {.name = "token_stream",
                                                  .size = sizeof(token_stream),
                                                  .destroy = tokens_destroy,
                                                  .open = tokens_open,
                                                  .next = tokens_next,
                                                  .skip = tokens_skip,
                                                  .close = tokens_close};

ek_dataset *ek_token_stream_with(ek_token_stream_options options)
{
    if (ek_check_pointer("token_stream", "the path", options.path) < 0)
        return NULL;
    const int64_t most = INT64_MAX / 16; /* their bytes must fit in an int64_t */
    if (options.length < 1 || options.length > most)
        return EK_FAIL_NULL(EK_E_INVALID, "token_stream: length %lld; lengths lie in [1, %lld]",
                            (long long)options.length, (long long)most);
    const ek_token_type *type = ek_token_type_of_file("token_stream", options.type);
    token_stream *self = type ? (token_stream *)ek_dataset_new(&token_stream_type) : NULL;
    if (!self)
        return NULL;
    self->type = type;
    self->length = options.length;
    self->path = ek_strdup(options.path);
    if (!self->path) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    return &self->dataset;
}
