/* state.h: dictionaries of tensors, in which samplers and loaders say where they are.
 *
 * What comes back may come from a file that anybody has written: readers take nothing for granted,
 * and give EK_E_FORMAT with a sentence that names the function, the key and what is wrong. */
#ifndef EK_DATA_STATE_H
#define EK_DATA_STATE_H

#include "core/generator.h"
#include "evenkeel/sampler.h"

/* ---- writing: tensors on cpu, in the scope; errors as errors of values ---- */

ek_value ek_state_of_int(int64_t integer); /* i64, no dimensions */
ek_value ek_state_of_ints(const int64_t *integers, int64_t count);
ek_value ek_state_of_bytes(const void *bytes, int64_t nbytes);
ek_value ek_state_of_text(const char *text);
ek_value ek_state_of_generator(ek_generator *generator); /* NULL: the default one */

/* ---- reading ---- */

/* 0, or an error if `state` is no dictionary. */
int ek_state_check(ek_value state, const char *function);
bool ek_state_has(ek_value state, const char *key);

/* A whole number, or an i64 tensor of one element, in [low, high]. */
int ek_state_int(ek_value state, const char *function, const char *key, int64_t low, int64_t high,
                 int64_t *integer);
/* An i64 tensor of one dimension; freed with free() (also of length 0). */
int ek_state_ints(ek_value state, const char *function, const char *key, int64_t **integers,
                  int64_t *count);
/* A u8 tensor of `nbytes` bytes. */
int ek_state_bytes(ek_value state, const char *function, const char *key, void *bytes,
                   int64_t nbytes);
/* Whether the bytes are those of `text`; `what` they name is for the sentence ("sampler"). */
int ek_state_is_text(ek_value state, const char *function, const char *key, const char *text,
                     const char *what);
/* A whole generator, to be copied to where it belongs when all has been read. */
int ek_state_generator(ek_value state, const char *function, const char *key,
                       ek_generator *generator);

/* Where a pass' batches end ("ends"), which rise to the number of its indices. The caller frees the
 * pass, also after an error. */
int ek_state_ends(ek_value state, const char *function, ek_pass *pass);

#endif
