/* protobuf.c: see protobuf.h. A field begins with a tag, 8 * number + type, and numbers are
 * varints: seven bits a byte, the lowest first, the eighth bit set in all bytes but the last. */
#include "core/protobuf.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

typedef enum protobuf_type {
    PROTOBUF_VARINT = 0,
    PROTOBUF_FIXED64 = 1,
    PROTOBUF_BYTES = 2,
    PROTOBUF_FIXED32 = 5
} protobuf_type;

static void protobuf_put(ek_protobuf *message, const void *bytes, size_t nbytes)
{
    if (message->status < 0 || nbytes == 0)
        return;
    if (nbytes > message->room - message->nbytes) {
        size_t room = 2 * message->room + nbytes + 64;
        unsigned char *grown = ek_realloc(message->bytes, room);
        if (!grown) {
            message->status = EK_E_NO_MEMORY;
            return;
        }
        message->bytes = grown;
        message->room = room;
    }
    memcpy(message->bytes + message->nbytes, bytes, nbytes);
    message->nbytes += nbytes;
}

static void protobuf_put_varint(ek_protobuf *message, uint64_t value)
{
    unsigned char bytes[10];
    size_t count = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[count++] = (unsigned char)(value | 0x80);
    bytes[count++] = (unsigned char)value;
    protobuf_put(message, bytes, count);
}

static void protobuf_put_tag(ek_protobuf *message, int field, protobuf_type type)
{
    protobuf_put_varint(message, (uint64_t)field << 3 | type);
}

void ek_protobuf_int(ek_protobuf *message, int field, int64_t value)
{
    protobuf_put_tag(message, field, PROTOBUF_VARINT);
    protobuf_put_varint(message, (uint64_t)value);
}

/* Numbers of fixed size are little-endian. */
static void protobuf_put_fixed(ek_protobuf *message, uint64_t bits, size_t nbytes)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (unsigned char)(bits >> 8 * i);
    protobuf_put(message, bytes, nbytes);
}

void ek_protobuf_float(ek_protobuf *message, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    protobuf_put_tag(message, field, PROTOBUF_FIXED32);
    protobuf_put_fixed(message, bits, sizeof bits);
}

void ek_protobuf_double(ek_protobuf *message, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    protobuf_put_tag(message, field, PROTOBUF_FIXED64);
    protobuf_put_fixed(message, bits, sizeof bits);
}

void ek_protobuf_begin(ek_protobuf *message, int field, size_t nbytes)
{
    protobuf_put_tag(message, field, PROTOBUF_BYTES);
    protobuf_put_varint(message, nbytes);
}

void ek_protobuf_bytes(ek_protobuf *message, int field, const void *bytes, size_t nbytes)
{
    ek_protobuf_begin(message, field, nbytes);
    protobuf_put(message, bytes, nbytes);
}

void ek_protobuf_text(ek_protobuf *message, int field, const char *text)
{
    ek_protobuf_bytes(message, field, text, strlen(text));
}

void ek_protobuf_message(ek_protobuf *message, int field, ek_protobuf *part)
{
    if (part->status < 0 && message->status == 0)
        message->status = part->status;
    ek_protobuf_bytes(message, field, part->bytes, part->nbytes);
    ek_protobuf_clear(part);
}

void ek_protobuf_clear(ek_protobuf *message)
{
    free(message->bytes);
    *message = (ek_protobuf){0};
}
