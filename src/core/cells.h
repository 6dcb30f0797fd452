/* cells.h: memory of the small objects that every operation makes: tensors, storages, versions and
 * graph nodes. A thread keeps cells that it has freed, up to a limit, and reuses them without
 * asking the system. */
#ifndef EK_CORE_CELLS_H
#define EK_CORE_CELLS_H

#include <stddef.h>

/* Returns a zeroed cell of nbytes, or NULL with EK_E_NO_MEMORY. */
void *ek_cell_new(size_t nbytes);
/* Frees a cell of ek_cell_new(nbytes); NULL is ignored. Any thread. */
void ek_cell_free(void *cell, size_t nbytes);
/* Gives the cells that the calling thread keeps back to the system. */
void ek_cells_clear(void);

#endif
