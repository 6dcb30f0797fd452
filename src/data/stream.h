/* stream.h: files that are read once from beginning to end, plain or gzip.
 *
 * Errors begin with "<what>: <path>": EK_E_IO with the system's reason, EK_E_FORMAT for a gzip
 * stream that is damaged or ends too early. Memory grows with what is read, so a damaged file that
 * claims a large size takes no more memory. */
#ifndef EK_DATA_STREAM_H
#define EK_DATA_STREAM_H

#include <stdint.h>
#include <zlib.h>

#include "evenkeel/tensor.h"

/* The most bytes to which one deflated byte expands. */
enum { EK_DEFLATE_MOST = 1032 };

typedef struct ek_byte_stream {
    const char *what, *path; /* borrowed while the stream is open */
    size_t file_nbytes;      /* size on the disk */
    gzFile file;
} ek_byte_stream;

/* Bytes that were read. The caller zeroes it, and frees `bytes`, also after errors. */
typedef struct ek_bytes {
    uint8_t *bytes;
    size_t nbytes, room;
} ek_bytes;

/* EK_E_INVALID if the path is NULL, EK_E_IO if it is no regular file. After an error there is
 * nothing to close. */
int ek_byte_stream_open(ek_byte_stream *stream, const char *what, const char *path);
void ek_byte_stream_close(ek_byte_stream *stream);

/* Reads exactly nbytes. EK_E_FORMAT if the file ends before. */
int ek_byte_stream_read_header(ek_byte_stream *stream, void *data, size_t nbytes);

/* Appends up to `most` bytes, fewer only at the end of the file. */
int ek_byte_stream_append(ek_byte_stream *stream, size_t most, ek_bytes *bytes);

/* Appends `count` elements of `size` bytes, after which the file must end. EK_E_FORMAT, before
 * anything is read, if a file of this size can't hold so many even if it is compressed. */
int ek_byte_stream_append_elements(ek_byte_stream *stream, size_t count, size_t size,
                                   ek_bytes *bytes);

/* Adds a dimension to a shape. EK_E_FORMAT beyond EK_MAX_DIMS dimensions, or if the sizes multiply
 * to more than a tensor may have. A size of 0 does not excuse other sizes that are too large. */
int ek_byte_stream_add_size(const ek_byte_stream *stream, ek_shape *shape, int64_t size);

/* Returns the path <directory>/<name>, or <directory>/<name>.gz if only this file exists. The
 * caller frees the path. NULL with EK_E_IO if neither file exists; the message ends with what the
 * directory `must_hold`. */
char *ek_byte_stream_find(const char *what, const char *directory, const char *name,
                          const char *must_hold);

#endif
