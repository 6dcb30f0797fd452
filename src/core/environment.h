/* environment.h: variables by which users choose. One that is empty counts as not set. */
#ifndef EK_CORE_ENVIRONMENT_H
#define EK_CORE_ENVIRONMENT_H

#include <stdbool.h>

/* Reads a switch, which is 0 or 1. *on stays as it is if the variable isn't set. */
int ek_environment_switch(const char *name, bool *on);

/* Reads a count from 1 to EK_MOST_COUNT: 0 if the variable isn't set, -1 if it is anything else.
 * Sets no error. */
enum { EK_MOST_COUNT = 65536 };
int ek_environment_count(const char *name);

/* True if a list with commas names the word, in whatever case. */
bool ek_environment_lists(const char *name, const char *word);

/* An error if a list names anything but the known words, of which there is one at least. */
int ek_environment_check_list(const char *name, const char *const *known, int count);

#endif
