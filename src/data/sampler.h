/* sampler.h: functions that the library's samplers share; writes and reads states. */
#ifndef EK_DATA_SAMPLER_H
#define EK_DATA_SAMPLER_H

#include "core/generator.h"
#include "core/value.h"
#include "evenkeel/sampler.h"

/* ---- the library's samplers that give samples, not batches ---- */

/* The first member of the structs of these samplers. */
typedef struct ek_index_sampler {
    ek_sampler sampler;
    int64_t low, high; /* samples lie in [low, high), also in a loaded state */
    int64_t length;    /* samples in a pass */
    int64_t lacks;     /* how many more samples the longest pass of any rank has */
    int64_t room;      /* how many samples `fill` may write; at least the length */
    /* The pass is the share of `rank` of `ranks`, and depends on the epoch alone. ranks 0: all
     * ranks draw the same pass. strided: sample i of a share is number i * ranks + rank of the
     * order of all ranks. */
    int rank, ranks;
    bool strided;
    void *owned; /* memory that is freed with the sampler; NULL: none */
} ek_index_sampler;

/* The type of an index sampler. `fill` writes a whole pass. */
typedef struct ek_index_sampler_type {
    ek_sampler_type type;
    int (*fill)(ek_index_sampler *self, int64_t *indices);
} ek_index_sampler_type;

int64_t ek_index_sampler_length(ek_sampler *sampler);
int64_t ek_index_sampler_longest(ek_sampler *sampler);
int ek_index_sampler_draw(ek_sampler *sampler, ek_pass *pass);
void ek_index_sampler_destroy(ek_sampler *sampler);
#define EK_INDEX_SAMPLER_TYPE(kind, object, function)  \
    {                                                  \
        .type = {.name = (kind),                       \
                 .size = sizeof(object),               \
                 .length = ek_index_sampler_length,    \
                 .draw = ek_index_sampler_draw,        \
                 .longest = ek_index_sampler_longest,  \
                 .destroy = ek_index_sampler_destroy}, \
        .fill = (function)                             \
    }

/* Makes a sampler of passes of `length` samples in [0, high). */
void *ek_index_sampler_new(const ek_index_sampler_type *type, int64_t high, int64_t length);

/* Returns the sampler that draws this rank's share for the sampler, which is this sampler or a
 * batch sampler over it. NULL, without an error, if all ranks draw the same pass. */
ek_index_sampler *ek_sampler_share(ek_sampler *sampler);

/* ---- checks: EK_E_INVALID with a message in the name of `function` ---- */

int ek_sampler_check_least(const char *function, const char *what, int64_t value, int64_t least);
/* Checks that an array of `count` values isn't NULL. If `count` is 0, the array may be NULL. */
int ek_sampler_check_array(const char *function, const char *what, const void *array,
                           int64_t count);
/* Resolves num_replicas and rank: EK_UNSET becomes the world's size and rank.
 * Checks that the rank is in [0, num_replicas). */
int ek_sampler_find_rank(const char *function, int *num_replicas, int *rank);

/* ---- states: dictionaries of tensors that samplers and loaders save ----
 *
 * If a value cannot be written, it becomes an error value, and so does the whole dictionary. */

enum { EK_STATE_MOST = 16 };

typedef struct ek_state_writer {
    ek_value_entry entries[EK_STATE_MOST];
    int count;
} ek_state_writer;

void ek_state_put(ek_state_writer *writer, const char *key, ek_value value);
void ek_state_put_int(ek_state_writer *writer, const char *key, int64_t integer);
void ek_state_put_bytes(ek_state_writer *writer, const char *key, const void *bytes,
                        int64_t nbytes);
/* Writes "generator", or nothing if it is NULL. */
void ek_state_put_generator(ek_state_writer *writer, ek_generator *generator);
/* Writes the rest of a pass from index `begin` on as "indices". If the pass is cut into batches, it
 * also writes "ends" of the batches from number `batch` on, counted from `begin`. */
void ek_state_put_pass(ek_state_writer *writer, const ek_pass *pass, int64_t begin, bool batches,
                       int64_t batch);

/* A state that is being read. It may come from an untrusted file, so that everything is checked:
 * EK_E_FORMAT with a message that names the function, the key and what is wrong. */

typedef struct ek_state {
    const char *function;
    ek_value value; /* a dictionary once ek_state_check has returned 0 */
} ek_state;

/* Returns 0, or an error if the value is no dictionary. */
int ek_state_check(const ek_state *state);
/* Reads a whole number, or an i64 tensor of one element, in [low, high]. */
int ek_state_int(const ek_state *state, const char *key, int64_t low, int64_t high,
                 int64_t *integer);
/* Reads a u8 tensor of `nbytes` bytes. */
int ek_state_bytes(const ek_state *state, const char *key, void *bytes, int64_t nbytes);
/* Checks that the bytes are those of `text`; `what` ("sampler") is what the message calls it. */
int ek_state_is_text(const ek_state *state, const char *key, const char *text, const char *what);
/* Reads a whole "generator"; the caller copies it to its place after everything else was read.
 * `expected`: `what` was made with a generator. The key must be there if `expected`, and must not
 * be there otherwise. */
int ek_state_generator(const ek_state *state, bool expected, const char *what,
                       ek_generator *generator);
/* Reads the rest of a pass. Its indices are in [low, high]; if `batches`, its ends rise to the
 * number of indices. The caller frees the pass, also after an error. */
int ek_state_pass(const ek_state *state, bool batches, int64_t low, int64_t high, ek_pass *pass);

#endif
