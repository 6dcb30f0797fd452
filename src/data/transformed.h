/* transformed.h: what a data set that transforms another one's samples is made of. */
#ifndef EK_DATA_TRANSFORMED_H
#define EK_DATA_TRANSFORMED_H

#include "core/error.h"
#include "data/dataset.h"
#include "data/transform_chain.h"

/* An element of samples and batches, which have the same nesting, and its transforms. */
typedef struct ek_part {
    int field;                 /* index in a list; 0 also stands for a value that is no list */
    char *key;                 /* owned; not NULL: the key in a dictionary */
    ek_transform **transforms; /* owned */
    int count;
} ek_part;

typedef struct ek_transformed_set {
    ek_dataset dataset;
    ek_dataset *of;
    ek_part *parts;
    int part_count;
} ek_transformed_set;

/* ---- elements (transformed.c) ---- */

/* Returns true if both name the same element. */
bool ek_part_same(const ek_part *a, const ek_part *b);
/* Returns the element's tensor and its index *at; a number becomes a zero-dimensional one. NULL
 * with EK_E_INVALID if the sample has no such tensor. */
ek_tensor *ek_part_tensor(const ek_part *self, ek_value sample, int *at);
/* Returns the sample with `tensor` as its element `at`; an error if `tensor` is NULL. */
ek_value ek_part_replaced(ek_value sample, int at, ek_tensor *tensor);
/* Runs parts 0 to count - 1 of one sample until a part fails. All parts draw the same numbers.
 * Afterwards the generator has the state after the first part. While parts run, the generator isn't
 * locked, because transforms may be the user's functions. */
int ek_parts_run_alike(int count, int (*run)(void *user, int number), void *user);

/* ---- batches (transformed_rows.c) ---- */

/* get_batch of a transformed set around one that has get_batch. */
ek_value ek_transformed_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                  ek_device device);

#endif
