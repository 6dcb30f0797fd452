/* environment.h: environment variables of the user. An empty variable counts as not set. */
#ifndef EK_CORE_ENVIRONMENT_H
#define EK_CORE_ENVIRONMENT_H

#include <stdbool.h>

/* Reads a switch, which is 0 or 1. If the variable isn't set, *on keeps its value. */
int ek_environment_switch(const char *name, bool *on);

/* Reads a count from 1 to EK_MOST_COUNT. Returns 0 if the variable isn't set, -1 if it is anything
 * else. Sets no error. */
enum { EK_MOST_COUNT = 65536 };
int ek_environment_count(const char *name);

/* Returns true if the variable, a comma-separated list, holds the word in upper or lower case. */
bool ek_environment_lists(const char *name, const char *word);

/* Fails if the variable, a comma-separated list, holds a word other than the `count` known words.
 * `count` is at least 1. */
int ek_environment_check_list(const char *name, const char *const *known, int count);

#endif
