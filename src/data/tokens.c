/* tokens.c: the element types of files of tokens. */
#include "data/tokens.h"

#include <string.h>

#include "core/error.h"

/* Copies `count` numbers of this type, at any address. */
#define TOKEN_READER(name, type)                                                         \
    static void token_read_##name(const unsigned char *from, int64_t *to, int64_t count) \
    {                                                                                    \
        for (int64_t i = 0; i < count; i++) {                                            \
            type token;                                                                  \
            memcpy(&token, from + (size_t)i * sizeof token, sizeof token);               \
            to[i] = (int64_t)token;                                                      \
        }                                                                                \
    }
TOKEN_READER(u8, uint8_t)
TOKEN_READER(i8, int8_t)
TOKEN_READER(u16, uint16_t)
TOKEN_READER(i16, int16_t)
TOKEN_READER(u32, uint32_t)
TOKEN_READER(i32, int32_t)
TOKEN_READER(i64, int64_t)

static const ek_token_type token_types[] = {
    {"u8", 1, token_read_u8},   {"i8", 1, token_read_i8},   {"u16", 2, token_read_u16},
    {"i16", 2, token_read_i16}, {"u32", 4, token_read_u32}, {"i32", 4, token_read_i32},
    {"i64", 8, token_read_i64},
};

const ek_token_type *ek_token_type_of(const char *name)
{
    for (size_t i = 0; name && i < sizeof token_types / sizeof *token_types; i++)
        if (strcmp(token_types[i].name, name) == 0)
            return &token_types[i];
    return NULL;
}

const ek_token_type *ek_token_type_of_file(const char *caller, const char *name)
{
    const ek_token_type *type = ek_token_type_of(name ? name : "u16");
    if (!type)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "%s: the type \"%.40s\"; u8, i8, u16, i16, u32, i32 and i64 are read",
                            caller, name);
    return type;
}
