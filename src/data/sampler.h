/* sampler.h: what the library's samplers share, and the states of samplers and loaders. */
#ifndef EK_DATA_SAMPLER_H
#define EK_DATA_SAMPLER_H

#include "core/generator.h"
#include "core/value.h"
#include "evenkeel/sampler.h"

/* ---- the library's samplers of samples ---- */

/* The first member of their structs. */
typedef struct ek_index_sampler {
    ek_sampler sampler;
    int64_t low,
        high;       /* samples lie in [low, high): so a state that was tampered with is noticed */
    int64_t length; /* samples in a pass */
    int64_t room;   /* samples that `fill` has room for; at least the length */
    void *owned;    /* freed with the sampler; NULL: nothing */
} ek_index_sampler;

/* The type of such a sampler. `fill` writes a pass. */
typedef struct ek_index_sampler_type {
    ek_sampler_type type;
    int (*fill)(ek_index_sampler *self, int64_t *indices);
} ek_index_sampler_type;

int64_t ek_index_sampler_length(ek_sampler *sampler);
int ek_index_sampler_draw(ek_sampler *sampler, ek_pass *pass);
void ek_index_sampler_destroy(ek_sampler *sampler);
#define EK_INDEX_SAMPLER_TYPE(kind, object, function)  \
    {                                                  \
        .type = {.name = (kind),                       \
                 .size = sizeof(object),               \
                 .length = ek_index_sampler_length,    \
                 .draw = ek_index_sampler_draw,        \
                 .destroy = ek_index_sampler_destroy}, \
        .fill = (function)                             \
    }

/* Passes of `length` samples in [0, high). */
void *ek_index_sampler_new(const ek_index_sampler_type *type, int64_t high, int64_t length);

/* ---- checks: EK_E_INVALID in the name of `function` ---- */

int ek_sampler_check_least(const char *function, const char *what, int64_t value, int64_t least);
/* `count` values in an array, which may be NULL if there are none. */
int ek_sampler_check_array(const char *function, const char *what, const void *array,
                           int64_t count);
/* `rank` is one of `num_replicas` ranks. */
int ek_sampler_check_rank(const char *function, int num_replicas, int rank);

/* ---- states: dictionaries of tensors in which samplers and loaders say where they are ----
 *
 * Writing: errors become errors of values, and so of the dictionary. */

enum { EK_STATE_MOST = 13 };

typedef struct ek_state_writer {
    ek_value_entry entries[EK_STATE_MOST];
    int count;
} ek_state_writer;

void ek_state_put(ek_state_writer *writer, const char *key, ek_value value);
void ek_state_put_int(ek_state_writer *writer, const char *key, int64_t integer);
void ek_state_put_bytes(ek_state_writer *writer, const char *key, const void *bytes,
                        int64_t nbytes);
/* "generator"; nothing if it is NULL. */
void ek_state_put_generator(ek_state_writer *writer, ek_generator *generator);
/* What is left of a pass from index `begin` on: "indices", and if the pass is cut into batches,
 * "ends", counted from `begin`, of the batches from number `batch` on. */
void ek_state_put_pass(ek_state_writer *writer, const ek_pass *pass, int64_t begin, bool batches,
                       int64_t batch);

/* Reading: what comes back may come from a file that anybody has written. Nothing is taken for
 * granted: EK_E_FORMAT with a sentence that names the function, the key and what is wrong. */

typedef struct ek_state {
    const char *function;
    ek_value value; /* a dictionary, if ek_state_check says so */
} ek_state;

/* 0, or an error if it is no dictionary. */
int ek_state_check(const ek_state *state);
/* A whole number, or an i64 tensor of one element, in [low, high]. */
int ek_state_int(const ek_state *state, const char *key, int64_t low, int64_t high,
                 int64_t *integer);
/* A u8 tensor of `nbytes` bytes. */
int ek_state_bytes(const ek_state *state, const char *key, void *bytes, int64_t nbytes);
/* The bytes are those of `text`; `what` they name is for the sentence ("sampler"). */
int ek_state_is_text(const ek_state *state, const char *key, const char *text, const char *what);
/* "generator", whole, to be copied to where it belongs when all has been read. It is there if
 * `expected`, and only then: `what` was made with one. */
int ek_state_generator(const ek_state *state, bool expected, const char *what,
                       ek_generator *generator);
/* The rest of a pass with indices in [low, high] and, if `batches`, with ends that rise to their
 * number. The caller frees the pass, also after an error. */
int ek_state_pass(const ek_state *state, bool batches, int64_t low, int64_t high, ek_pass *pass);

#endif
