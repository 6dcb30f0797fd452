/* collective.h: the calls that all ranks of a group make together, as works (communication.h). */
#ifndef EK_DISTRIBUTED_COLLECTIVE_H
#define EK_DISTRIBUTED_COLLECTIVE_H

#include "distributed/communication.h"

/* One tensor on every rank: barrier (none), broadcast, all_reduce, reduce. The card has the shape,
 * root and operation. */
extern const ek_verb ek_verb_barrier, ek_verb_broadcast, ek_verb_all_reduce, ek_verb_reduce;

/* A tensor for each pair of ranks: work->out and in, with their shapes in gives and takes. If two
 * ranks do not agree about what one gives to the other, nothing is moved and all ranks fail. */
extern const ek_verb ek_verb_all_gather, ek_verb_gather, ek_verb_scatter, ek_verb_all_to_all;
extern const ek_verb ek_verb_reduce_scatter;

extern const ek_verb ek_verb_send, ek_verb_recv;

/* Allocates out, in, gives and takes, and scratch for the comparison of shapes. */
int ek_dist_work_pairs(ek_dist_work *work);

/* Fills the card's dtype and shape from a tensor, and its payload with the elements if they fit. */
void ek_dist_work_card(ek_dist_work *work, const ek_tensor *memory);

/* Bytes of scratch that a sum of a tensor over `size` ranks needs. */
size_t ek_sum_scratch(const ek_tensor *memory, int size);

/* A tensor's dtype and shape; NULL: no tensor. */
ek_wire_shape ek_wire_shape_of(const ek_tensor *tensor);

/* "f32[2, 3]"; "no tensor". */
void ek_wire_shape_text(const ek_wire_shape *shape, char text[120]);

#endif
