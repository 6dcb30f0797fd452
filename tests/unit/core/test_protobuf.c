/* test_protobuf.c: the bytes of messages, as Protocol Buffers' documents give them. */
#include "core/protobuf.h"

#include "unit.h"

static void assert_bytes(ek_protobuf *message, const void *bytes, size_t nbytes)
{
    ck_assert_int_eq(message->status, 0);
    ck_assert_uint_eq(message->nbytes, nbytes);
    ck_assert_mem_eq(message->bytes, bytes, nbytes);
    ek_protobuf_clear(message);
}
#define ASSERT_BYTES(message, text) assert_bytes((message), (text), sizeof(text) - 1)

TEST(fields)
{
    ek_protobuf message = {0};
    ek_protobuf_int(&message, 1, 150);
    ASSERT_BYTES(&message, "\x08\x96\x01");
    ek_protobuf_int(&message, 16, -1);
    ASSERT_BYTES(&message, "\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    ek_protobuf_text(&message, 2, "testing");
    ASSERT_BYTES(&message, "\x12\x07testing");
    ek_protobuf_float(&message, 3, 1);
    ASSERT_BYTES(&message, "\x1d\0\0\x80\x3f");
    ek_protobuf_double(&message, 4, -2);
    ASSERT_BYTES(&message, "\x21\0\0\0\0\0\0\0\xc0");
    ek_protobuf_text(&message, 5, "");
    ASSERT_BYTES(&message, "\x2a\0");
}

TEST(messages_in_messages)
{
    ek_protobuf part = {0}, message = {0};
    ek_protobuf_int(&part, 1, 150);
    ek_protobuf_message(&message, 3, &part);
    ck_assert_ptr_null(part.bytes);
    ASSERT_BYTES(&message, "\x1a\x03\x08\x96\x01");
    part.status = EK_E_NO_MEMORY;
    ek_protobuf_message(&message, 3, &part);
    ek_protobuf_int(&message, 1, 1);
    ck_assert_int_eq(message.status, EK_E_NO_MEMORY);
    ck_assert_int_eq(part.status, 0);
    ek_protobuf_clear(&message);
}

TEST(fields_that_are_written_later)
{
    ek_protobuf message = {0};
    ek_protobuf_begin(&message, 3, 150);
    ASSERT_BYTES(&message, "\x1a\x96\x01");
}

TEST(long_messages)
{
    static char text[100000];
    memset(text, 'x', sizeof text);
    ek_protobuf message = {0};
    for (int i = 0; i < 10; i++)
        ek_protobuf_bytes(&message, 1, text, sizeof text);
    ck_assert_uint_eq(message.nbytes, 10 * (sizeof text + 4));
    ck_assert_mem_eq(message.bytes + 9 * (sizeof text + 4), "\x0a\xa0\x8d\x06xx", 6);
    ek_protobuf_clear(&message);
}
