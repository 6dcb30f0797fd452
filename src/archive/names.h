/* names.h: a table of dotted names, and of what each stands for. */
#ifndef EK_ARCHIVE_NAMES_H
#define EK_ARCHIVE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

typedef enum ek_name_kind {
    EK_NAME_TENSOR = 1,
    EK_NAME_ABOVE = 2, /* tensors lie below it */
    EK_NAME_TEXT = 4
} ek_name_kind;

typedef struct ek_name_slot {
    const char *text; /* `length` bytes within a name of the owner's; NULL: free */
    size_t length, hash;
    unsigned kinds;
} ek_name_slot;

/* All zero is an empty table. Texts have to live as long as they are in it. */
typedef struct ek_name_table {
    ek_name_slot *slots; /* open addressing, a power of two */
    size_t capacity, count;
} ek_name_table;

/* What the first `length` bytes of `text` stand for; 0: nothing. */
unsigned ek_name_kinds(const ek_name_table *table, const char *text, size_t length);
/* Adds a kind; 0 or EK_E_NO_MEMORY. */
int ek_name_add(ek_name_table *table, const char *text, size_t length, ek_name_kind kind);
void ek_name_clear(ek_name_table *table);

#endif
