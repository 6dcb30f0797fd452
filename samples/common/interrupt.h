/* interrupt.h: Ctrl-C, obeyed where a run can be left without losing anything. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

#include <signal.h>
#include <stdint.h>

enum { INTERRUPTED = 130 }; /* exit status, as shells say it */

/* From now on the first SIGINT or SIGTERM sets what this points to, for the loop to look at after
 * each step; the second ends the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);

/* What to do after it: where nothing was written, that it is so (checkpoint NULL); else the same
 * command with --resume <checkpoint>, for a shell. */
void interrupt_explain(int64_t step, const char *checkpoint, int argc, char **argv);

#endif
