/* protobuf.h: writes messages in the wire format of Protocol Buffers.
 *
 *     ek_protobuf shape = {0}, tensor = {0};
 *     ek_protobuf_int(&shape, 1, 64);
 *     ek_protobuf_text(&tensor, 1, "weight");
 *     ek_protobuf_message(&tensor, 2, &shape);
 *     if (tensor.status < 0) ...
 *     ek_protobuf_clear(&tensor);
 *
 * A message is a growing array of bytes. If memory is short, the message's status becomes
 * EK_E_NO_MEMORY with the error set, and later calls do nothing: a writer looks at the status once,
 * at the end. */
#ifndef EK_CORE_PROTOBUF_H
#define EK_CORE_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

/* All zero is an empty message. */
typedef struct ek_protobuf {
    unsigned char *bytes;
    size_t nbytes, room;
    int status; /* 0 or a negative status */
} ek_protobuf;

/* Append a field: an int32, int64, uint64, bool or enum; a float; a double. */
void ek_protobuf_int(ek_protobuf *message, int field, int64_t value);
void ek_protobuf_float(ek_protobuf *message, int field, float value);
void ek_protobuf_double(ek_protobuf *message, int field, double value);
/* Append a field of bytes (also: packed numbers of fixed size), or a string. */
void ek_protobuf_bytes(ek_protobuf *message, int field, const void *bytes, size_t nbytes);
void ek_protobuf_text(ek_protobuf *message, int field, const char *text);
/* Appends the begin of a field of `nbytes` bytes, which the caller writes after the message. */
void ek_protobuf_begin(ek_protobuf *message, int field, size_t nbytes);
/* Appends `part` as a field, takes over its status and clears it. */
void ek_protobuf_message(ek_protobuf *message, int field, ek_protobuf *part);

/* Frees the bytes; the message is empty and without error. */
void ek_protobuf_clear(ek_protobuf *message);

#endif
