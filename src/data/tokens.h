/* tokens.h: the element types of files of tokens. */
#ifndef EK_DATA_TOKENS_H
#define EK_DATA_TOKENS_H

#include <stddef.h>
#include <stdint.h>

typedef struct ek_token_type {
    const char *name;
    size_t nbytes;
    /* Copies `count` numbers of this type, at any address. */
    void (*read)(const unsigned char *from, int64_t *to, int64_t count);
} ek_token_type;

/* Returns the type of this name, or NULL. */
const ek_token_type *ek_token_type_of(const char *name);
/* Returns the type of a file's tokens; u16 if the name is NULL. NULL with EK_E_INVALID. */
const ek_token_type *ek_token_type_of_file(const char *caller, const char *name);

#endif
