/* tree.h: nested values, whose tensors are cut for several devices and joined again. */
#ifndef EK_COMM_TREE_H
#define EK_COMM_TREE_H

#include "evenkeel/comm.h"

/* The tensors and scattered lists that a value holds. */
typedef struct ek_tree_survey {
    int64_t size; /* size along dim of every tensor to cut; -1 if there is no such tensor */
    int parts;    /* length of the lists that are scattered already; 0 if there is no such list */
    /* True once a list that is scattered already has tensors in all elements; `sizes` then has the
     * size along dim of the first tensor in each element. */
    bool sizes_known;
    int64_t sizes[EK_MAX_DEVICES];
    /* The first scattered list with a tensor in every element; EK_VALUE_NONE if there is none. */
    ek_value placed;
} ek_tree_survey;

/* Adds what the value holds to *survey, which starts as {.size = -1}. A tensor that is marked by
 * ek_value_batched is cut along its mark instead of dim. Fails with EK_E_SHAPE if tensors differ in
 * size along dim, or scattered lists differ in length or in the sizes of their elements. */
int ek_tree_look(ek_value value, int dim, ek_tree_survey *survey);

/* Does what ek_scatter_value does, for a value that ek_tree_look has surveyed. */
int ek_tree_scatter(ek_value value, const ek_tree_survey *survey, const ek_device_list *devices,
                    const int64_t *chunk_sizes, int dim, ek_value *out);

/* Returns the size along dim (or the tensor's mark) of the first tensor in the value; -1 if there
 * is no tensor or the tensor has no dimensions; EK_E_SHAPE if the tensor has no dimension dim. */
int64_t ek_tree_batch_size(ek_value value, int dim);

/* Returns the first tensor in the value, or NULL. */
ek_tensor *ek_tree_first(ek_value value);

/* Writes the sizes of the chunks of n elements for `devices` devices, and returns how many there
 * are. `given` holds sizes to check and use; NULL: torch.chunk's sizes. An empty dimension gives
 * every device an empty chunk. */
int ek_comm_chunk_sizes(const char *what, int64_t n, int devices, const int64_t *given,
                        int64_t *sizes);

#endif
