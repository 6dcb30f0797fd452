/* cells.c: each thread's lists of free cells, one list for each multiple of UNIT bytes. */
#include "core/cells.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

/* A list keeps at most MOST_KEPT_NBYTES and one cell more. */
enum { UNIT = 64, MOST_KEPT_NBYTES = 1 << 20 };

struct ek_cell {
    struct ek_cell *next;
};

/* Returns the calling thread's list for cells of nbytes; NULL if cells of that size are not kept.
 * Builds with AddressSanitizer keep no cells, so that it watches every object. */
static ek_cell_list *cell_list(size_t nbytes)
{
#if defined(EK_SANITIZED) && !defined(EK_SANITIZED_THREAD)
    (void)nbytes;
    return NULL;
#else
    size_t i = (nbytes - 1) / UNIT;
    return i < EK_CELL_LISTS ? &ek_thread_self()->cells[i] : NULL;
#endif
}

static size_t cell_round_up(size_t nbytes)
{
    return (nbytes + UNIT - 1) / UNIT * UNIT;
}

void *ek_cell_new(size_t nbytes)
{
    ek_cell_list *list = cell_list(nbytes);
    struct ek_cell *cell = list ? list->first : NULL;
    if (!cell)
        return ek_calloc(1, list ? cell_round_up(nbytes) : nbytes);
    list->first = cell->next;
    list->nbytes -= cell_round_up(nbytes);
    return memset(cell, 0, nbytes);
}

void ek_cell_free(void *cell, size_t nbytes)
{
    ek_cell_list *list = cell ? cell_list(nbytes) : NULL;
    if (!list || list->nbytes > MOST_KEPT_NBYTES) {
        free(cell);
        return;
    }
    ((struct ek_cell *)cell)->next = list->first;
    list->first = cell;
    list->nbytes += cell_round_up(nbytes);
}

void ek_cells_clear(void)
{
    ek_thread *thread = ek_thread_self();
    for (int i = 0; i < EK_CELL_LISTS; i++) {
        ek_cell_list *list = &thread->cells[i];
        while (list->first) {
            struct ek_cell *next = list->first->next;
            free(list->first);
            list->first = next;
        }
        list->nbytes = 0;
    }
}
