/* log_reader.h: reads the files of a log, independently of the code that wrote them. */
#ifndef EK_TESTS_LOG_READER_H
#define EK_TESTS_LOG_READER_H

#include <dirent.h>

#include "kit/files.h"

typedef struct log_bytes {
    unsigned char *bytes;
    size_t nbytes;
} log_bytes;

/* Files that were read. */
typedef struct log_block {
    struct log_block *next;
    unsigned char bytes[];
} log_block;
static log_block *log_blocks;

/* Frees all that log_read has returned. */
static inline void log_free_files(void)
{
    while (log_blocks) {
        log_block *next = log_blocks->next;
        free(log_blocks);
        log_blocks = next;
    }
}

/* Returns the whole file, with a zero behind. */

static inline log_bytes log_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "no file %s", path);
    fseek(file, 0, SEEK_END);
    log_bytes of = {.nbytes = (size_t)ftell(file)};
    rewind(file);
    log_block *block = calloc(sizeof *block + of.nbytes + 1, 1);
    ck_assert_ptr_nonnull(block);
    block->next = log_blocks;
    log_blocks = block;
    of.bytes = block->bytes;
    ck_assert_uint_eq(fread(of.bytes, 1, of.nbytes, file), of.nbytes);
    fclose(file);
    return of;
}

/* Returns the path of the log's number `which` file of events, in the order of names. */
static inline const char *log_events_path(const char *log, int which)
{
    static char path[600];
    struct dirent **list;
    int count = scandir(log, &list, NULL, alphasort), found = -1;
    for (int i = 0; i < count; i++) {
        if (strstr(list[i]->d_name, "tfevents") && ++found == which)
            snprintf(path, sizeof path, "%s/%s", log, list[i]->d_name);
        free(list[i]);
    }
    if (count >= 0)
        free(list);
    ck_assert_msg(found >= which, "%d files of events in %s", found + 1, log);
    return path;
}

/* ---- records ---- */

static inline uint64_t log_number(const unsigned char *bytes, int nbytes)
{
    uint64_t number = 0;
    for (int i = nbytes - 1; i >= 0; i--)
        number = number << 8 | bytes[i];
    return number;
}

static inline uint32_t log_crc(const unsigned char *bytes, size_t nbytes)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * nbytes; i++) {
        const uint32_t bit = (crc ^ bytes[i / 8] >> i % 8) & 1;
        crc = crc >> 1 ^ (bit ? 0x82f63b78 : 0);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

/* Reads the record at *at and moves *at behind it. Returns false at the file's end, and for a
 * record that is cut off. A wrong checksum fails the test. */
static inline bool log_record(const log_bytes *file, size_t *at, log_bytes *data)
{
    if (file->nbytes - *at < 12)
        return false;
    unsigned char *record = file->bytes + *at;
    ck_assert_uint_eq(log_number(record + 8, 4), log_crc(record, 8));
    *data = (log_bytes){record + 12, log_number(record, 8)};
    if (file->nbytes - *at < data->nbytes + 16)
        return false;
    ck_assert_uint_eq(log_number(data->bytes + data->nbytes, 4),
                      log_crc(data->bytes, data->nbytes));
    *at += data->nbytes + 16;
    return true;
}

/* ---- messages ---- */

typedef struct log_field {
    uint64_t number; /* of a varint or a number of fixed size */
    log_bytes data;  /* of bytes and messages */
} log_field;

static inline uint64_t log_varint(const log_bytes *message, size_t *at)
{
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
        ck_assert_uint_lt(*at, message->nbytes);
        number |= (uint64_t)(message->bytes[*at] & 0x7f) << shift;
        if (!(message->bytes[(*at)++] & 0x80))
            return number;
    }
}

/* Finds a field of a message. Returns false if there is none. */
static inline bool log_find(log_bytes message, unsigned wanted, log_field *field)
{
    static const int sizes[] = {[1] = 8, [5] = 4};
    for (size_t at = 0; at < message.nbytes;) {
        const uint64_t tag = log_varint(&message, &at);
        *field = (log_field){0};
        if (tag % 8 == 0) {
            field->number = log_varint(&message, &at);
        } else if (tag % 8 == 2) {
            field->data.nbytes = log_varint(&message, &at);
            field->data.bytes = message.bytes + at;
            at += field->data.nbytes;
        } else {
            field->number = log_number(message.bytes + at, sizes[tag % 8]);
            at += (size_t)sizes[tag % 8];
        }
        ck_assert_uint_le(at, message.nbytes);
        if (tag / 8 == wanted)
            return true;
    }
    return false;
}

/* Returns the field at the end of a path of field numbers, which must be there. */
static inline log_field log_at(log_bytes message, int depth, const unsigned *path)
{
    log_field field = {.data = message};
    for (int i = 0; i < depth; i++)
        ck_assert_msg(log_find(field.data, path[i], &field), "no field %u", path[i]);
    return field;
}
#define LOG_AT(message, ...)                                                       \
    log_at((message), (int)(sizeof((unsigned[]){__VA_ARGS__}) / sizeof(unsigned)), \
           (const unsigned[]){__VA_ARGS__})

static inline double log_double(log_field field)
{
    double value;
    memcpy(&value, &field.number, sizeof value);
    return value;
}

#endif
