/* names.c: open addressing by FNV-1a (Fowler, Noll, Vo). */
#include "archive/names.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

static size_t hash_of(const char *text, size_t length)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return (size_t)hash;
}

/* The slot of a name, or the free one where it would be. */
static ek_name_slot *slot_of(const ek_name_table *table, const char *text, size_t length,
                             size_t hash)
{
    size_t at = hash & (table->capacity - 1);
    for (;; at = (at + 1) & (table->capacity - 1)) {
        ek_name_slot *slot = &table->slots[at];
        if (!slot->text ||
            (slot->hash == hash && slot->length == length && memcmp(slot->text, text, length) == 0))
            return slot;
    }
}

static int grow(ek_name_table *table)
{
    ek_name_table larger = {.capacity = table->capacity ? 2 * table->capacity : 64,
                            .count = table->count};
    larger.slots = ek_calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return EK_E_NO_MEMORY;
    for (size_t i = 0; i < table->capacity; i++) {
        const ek_name_slot *slot = &table->slots[i];
        if (slot->text)
            *slot_of(&larger, slot->text, slot->length, slot->hash) = *slot;
    }
    free(table->slots);
    *table = larger;
    return 0;
}

unsigned ek_name_kinds(const ek_name_table *table, const char *text, size_t length)
{
    if (table->count == 0)
        return 0;
    return slot_of(table, text, length, hash_of(text, length))->kinds;
}

int ek_name_add(ek_name_table *table, const char *text, size_t length, ek_name_kind kind)
{
    size_t hash = hash_of(text, length);
    if (2 * table->count >= table->capacity)
        EK_TRY(grow(table));
    ek_name_slot *slot = slot_of(table, text, length, hash);
    if (!slot->text) {
        *slot = (ek_name_slot){text, length, hash, 0};
        table->count++;
    }
    slot->kinds |= (unsigned)kind;
    return 0;
}

void ek_name_clear(ek_name_table *table)
{
    free(table->slots);
    *table = (ek_name_table){0};
}
