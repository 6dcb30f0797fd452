/* node.h: saved tensors, for this folder. */
#ifndef EK_AUTOGRAD_NODE_H
#define EK_AUTOGRAD_NODE_H

#include "autograd/graph.h"

/* A saved tensor: a handle of the node's own, so that neither in-place operations on the caller's
 * nor re-homing of a parameter change it, and so that it never leads back to the node that saved
 * it. */
typedef struct ek_saved {
    ek_tensor *tensor; /* without history; NULL was saved */
    ek_edge edge;      /* its history; references */
    int output;        /* this output of the node itself, with the node as its history; else -1 */
    uint64_t version;  /* of the memory, when it was saved */
} ek_saved;

/* Where the gradient of `tensor` goes, with a reference; nothing if it requires none. */
ek_edge ek_edge_to(ek_tensor *tensor);
void ek_edge_release(ek_edge *edge);

#endif
