/* stream.h: files that are read once from their beginning to their end, plain or gzip.
 *
 * Errors begin with "<what>: <path>": EK_E_IO with the system's reason, EK_E_FORMAT for a gzip
 * stream that is damaged or ends too early. Memory grows with what is read, so that sizes which a
 * damaged file only claims cost nothing. */
#ifndef EK_DATA_STREAM_H
#define EK_DATA_STREAM_H

#include <stdint.h>
#include <zlib.h>

#include "evenkeel/tensor.h"

/* Bytes that deflate makes of one, at most. */
enum { EK_DEFLATE_MOST = 1032 };

typedef struct ek_stream {
    const char *what, *path; /* the caller's, as long as it is open */
    size_t file_nbytes;      /* as it lies on the disk */
    gzFile file;
} ek_stream;

/* Bytes that were read; all zero to begin with. free(bytes) at the end, also after errors. */
typedef struct ek_bytes {
    uint8_t *bytes;
    size_t nbytes, room;
} ek_bytes;

/* EK_E_INVALID if the path is NULL, EK_E_IO if it is no regular file's. Nothing has to be closed
 * after an error. */
int ek_stream_open(ek_stream *stream, const char *what, const char *path);
void ek_stream_close(ek_stream *stream);

/* All of nbytes; EK_E_FORMAT if the file ends before. */
int ek_stream_read_header(ek_stream *stream, void *data, size_t nbytes);

/* Appends up to `most` bytes, fewer only at the file's end. */
int ek_stream_append(ek_stream *stream, size_t most, ek_bytes *bytes);

/* Appends `count` elements of `size` bytes, behind which the file has to end. EK_E_FORMAT at once
 * for more than can be in a file of its size, however it was compressed. */
int ek_stream_append_elements(ek_stream *stream, size_t count, size_t size, ek_bytes *bytes);

/* Gives a shape that is being read one dimension more. EK_E_FORMAT if it would have more than
 * EK_MAX_DIMS, or sizes that multiply to more than any tensor has; a size of 0 does not save the
 * others. */
int ek_stream_add_size(const ek_stream *stream, ek_shape *shape, int64_t size);

/* The path of <directory>/<name>, or of <name>.gz if only that is there; free() it. NULL with
 * EK_E_IO if there is neither: the sentence ends with what the directory `must_hold`. */
char *ek_stream_find(const char *what, const char *directory, const char *name,
                     const char *must_hold);

#endif
