/* sample_element.h: elements of samples, and of batches, which have the same nesting. */
#ifndef EK_DATA_SAMPLE_ELEMENT_H
#define EK_DATA_SAMPLE_ELEMENT_H

#include "evenkeel/value.h"

typedef struct ek_sample_element {
    int field;       /* of a list; 0 is also what is no list itself */
    const char *key; /* not NULL: of a dictionary */
} ek_sample_element;

bool ek_sample_same(const ek_sample_element *a, const ek_sample_element *b);

/* Where the element is in a sample or batch; EK_E_INVALID if there is none. */
int ek_sample_find(const ek_sample_element *element, ek_value sample, int *at);

/* What is there. */
ek_value ek_sample_at(ek_value sample, int at);

/* Numbers count as tensors of no dimension; NULL with EK_E_INVALID for what is neither. */
ek_tensor *ek_sample_tensor(ek_value element);

/* The sample with `tensor` there; an error if that is NULL. */
ek_value ek_sample_replaced(ek_value sample, int at, ek_tensor *tensor);

#endif
