/* nest.h: nests of values on their way to devices and back. */
#ifndef EK_COMM_NEST_H
#define EK_COMM_NEST_H

#include "evenkeel/comm.h"

/* What a nest holds for scattering. */
typedef struct ek_nest_survey {
    int64_t size; /* of every tensor to cut, along dim; -1: there is none */
    int parts;    /* length of the lists that are scattered already; 0: there is none */
    /* Sizes along dim of the first tensors in such a list's elements, once one has them. */
    bool sizes_known;
    int64_t sizes[EK_MAX_DEVICES];
} ek_nest_survey;

/* Fills *survey, all zero but size = -1 before. EK_E_SHAPE if tensors differ in size along dim,
 * or scattered lists in length or in the sizes of their elements. */
int ek_nest_look(ek_value value, int dim, ek_nest_survey *survey);

/* Size along dim of the first tensor in the nest; -1 if there is none, EK_E_SHAPE if it has
 * no such dimension. */
int64_t ek_nest_batch_size(ek_value value, int dim);

/* The first tensor in the nest, or NULL. */
ek_tensor *ek_nest_first(ek_value value);

/* One more reference on what the value holds, in the scope. */
ek_value ek_nest_adopt(ek_value value);

#endif
