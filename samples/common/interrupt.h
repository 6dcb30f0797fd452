/* interrupt.h: Ctrl-C and kill, obeyed where a run can be left without losing anything. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

#include <signal.h>
#include <stdint.h>

/* From now on the first SIGINT or SIGTERM sets what this points to to its number, for the loop to
 * look at after each step; the second ends the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);

/* The exit status of a run that was stopped, as shells say it: 130 for SIGINT, 143 for SIGTERM. */
int interrupt_status(void);

/* What to do after it: where nothing was written, that it is so (checkpoint NULL); else the same
 * command with --resume <checkpoint>, for a shell. */
void interrupt_explain(int64_t step, const char *checkpoint, int argc, char **argv);

#endif
