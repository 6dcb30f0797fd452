/* text_lines.c: the lines of a text file, read from beginning to end. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"
#include "data/dataset.h"
#include "data/stream.h"

typedef struct lines {
    ek_dataset dataset;
    char *path; /* owned */
    int64_t max_line;
} lines;

typedef struct lines_cursor {
    ek_byte_stream stream;
    int64_t max_line;
    ek_bytes bytes; /* what was read */
    size_t at;      /* the next line begins here */
} lines_cursor;

enum { CHUNK = 1 << 16 };

static void *lines_open(ek_dataset *dataset, int64_t epoch)
{
    lines_cursor *cursor = ek_calloc(1, sizeof *cursor);
    (void)epoch;
    if (cursor &&
        ek_byte_stream_open(&cursor->stream, "text_lines", ((lines *)dataset)->path) < 0) {
        free(cursor);
        return NULL;
    }
    if (cursor)
        cursor->max_line = ((lines *)dataset)->max_line;
    return cursor;
}

static void lines_close(ek_dataset *dataset, void *user)
{
    lines_cursor *cursor = user;
    (void)dataset;
    ek_byte_stream_close(&cursor->stream);
    free(cursor->bytes.bytes);
    free(cursor);
}

/* Drops the bytes before the next line, and reads further bytes. Returns 1, 0 at the file's end, or
 * a negative status. */
static int lines_read(lines_cursor *cursor)
{
    ek_bytes *bytes = &cursor->bytes;
    if (cursor->at > 0) {
        memmove(bytes->bytes, bytes->bytes + cursor->at, bytes->nbytes - cursor->at);
        bytes->nbytes -= cursor->at;
        cursor->at = 0;
    }
    size_t before = bytes->nbytes;
    EK_TRY(ek_byte_stream_append(&cursor->stream, CHUNK, bytes));
    return bytes->nbytes > before;
}

static int lines_check_length(const lines_cursor *cursor, size_t nbytes)
{
    return nbytes <= (size_t)cursor->max_line
               ? 0
               : EK_FAIL_IN(EK_E_FORMAT, &cursor->stream,
                            "a line of more than %lld bytes; .max_line says how many are read",
                            (long long)cursor->max_line);
}

/* Finds the next line. Returns 1 with its first byte and length, 0 at the end. */
static int lines_find(lines_cursor *cursor, const uint8_t **line, int64_t *count)
{
    const ek_bytes *bytes = &cursor->bytes;
    size_t searched = 0;
    for (;;) {
        size_t left = bytes->nbytes - cursor->at;
        const uint8_t *begin = left ? bytes->bytes + cursor->at : NULL;
        const uint8_t *end =
            left > searched ? memchr(begin + searched, '\n', left - searched) : NULL;
        int more = 0;
        if (!end) {
            searched = left;
            EK_TRY(lines_check_length(cursor, left));
            more = lines_read(cursor);
            if (more < 0)
                return more;
            if (more > 0)
                continue;
            if (left == 0)
                return 0;
            begin = bytes->bytes + cursor->at; /* which lines_read has moved */
        }
        size_t length = end ? (size_t)(end - begin) : left;
        EK_TRY(lines_check_length(cursor, length));
        cursor->at += length + (end != NULL);
        *line = begin;
        bool returns = end && length && begin[length - 1] == '\r'; /* before a "\n" only */
        *count = (int64_t)(returns ? length - 1 : length);
        return 1;
    }
}

static int lines_next(ek_dataset *dataset, void *cursor, ek_value *sample)
{
    const uint8_t *line;
    int64_t count;
    (void)dataset;
    int rc = lines_find(cursor, &line, &count);
    if (rc > 0)
        *sample = ek_value_of_tensor(ek_from_data(line, EK_SHAPE(count), EK_U8));
    return rc;
}

static int64_t lines_skip(ek_dataset *dataset, void *cursor, int64_t count)
{
    const uint8_t *line;
    int64_t length, skipped = 0;
    int rc = 1;
    (void)dataset;
    while (skipped < count && (rc = lines_find(cursor, &line, &length)) > 0)
        skipped++;
    return rc < 0 ? rc : skipped;
}

static void lines_destroy(ek_dataset *dataset)
{
    free(((lines *)dataset)->path);
}

static const ek_dataset_type lines_type = {.name = "text_lines",
                                           .size = sizeof(lines),
                                           .destroy = lines_destroy,
                                           .open = lines_open,
                                           .next = lines_next,
                                           .skip = lines_skip,
                                           .close = lines_close};

ek_dataset *ek_text_lines_with(ek_text_lines_options options)
{
    int64_t max_line = options.max_line;
    if (ek_check_pointer("text_lines", "the path", options.path) < 0)
        return NULL;
    if (max_line < 1)
        return EK_FAIL_NULL(EK_E_INVALID, "text_lines: max_line is %lld; it is at least 1",
                            (long long)max_line);
    lines *self = (lines *)ek_dataset_new(&lines_type);
    if (self && !(self->path = ek_strdup(options.path))) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    if (self)
        self->max_line = max_line;
    return (ek_dataset *)self;
}
