/* ledger.h: the blocks of memory that the library's own calls have got and not given back. Any
 * thread. */
#ifndef EVENKEEL_TESTS_FAULT_LEDGER_H
#define EVENKEEL_TESTS_FAULT_LEDGER_H

#include <stdbool.h>

/* Notes a block and returns it; NULL is ignored. */
void *ledger_add(void *block);
/* Forgets it; false if it is not known: another library has allocated it. */
bool ledger_remove(const void *block);

#endif
