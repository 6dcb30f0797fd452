/* grad_hook.h: being told when leaves have their gradients.
 *
 * A hook belongs to a set of leaves, each with an index of the hook's own. It is told about every
 * ek_backward that reaches one of them; ek_grad tells nobody. What is to be done with gradients
 * while the backward goes on, like reducing them over ranks, stands on it.
 *
 * Note [Calls of a grad hook]
 *
 *     begin    on the caller's thread, before any backward runs. It lists exactly those of the
 *              hook's leaves that take part, and unless the pass fails `arrived` is called once for
 *              each of them.
 *     arrived  on the thread that runs the ready queue of the leaf's device, once the leaf
 *              has what it will have. Leaves arrive in any order, and those of several devices at
 *              the same time.
 *     finish   on the caller's thread, after all queues have ended; once for each begin that
 *              succeeded, also if the pass failed.
 *
 * begin comes before every arrived, and every arrived before finish, in the sense of memory too.
 * The engine holds no lock in these calls. A pass over leaves of several hooks calls one hook after
 * the other, in the order in which the walk through the graph finds their leaves; it is the same
 * for equal graphs, and the same for begin and finish. Two threads that go backward at the same
 * time make two passes, and nobody orders their calls: a hook that cannot have that refuses the
 * second begin.
 *
 * Each call has a scope and the modes of the pass: gradient mode is on if create_graph, autocast is
 * off, and other replicas cannot be waited for. Nodes that meet other ranks can be recorded in
 * begin and finish, but in arrived only if one device takes part. Each returns 0 or a negative
 * status with the error set, which becomes the pass's. A pass whose begin fails runs nothing, so
 * that it can be made again. */
#ifndef EK_AUTOGRAD_GRAD_HOOK_H
#define EK_AUTOGRAD_GRAD_HOOK_H

#include "core/tensor.h"

typedef struct ek_grad_hook {
    ek_object object;
    /* leaves[0 .. count), ascending, are the indices of the leaves that take part; the array is
     * borrowed until finish. create_graph: the gradients will have a graph themselves. */
    int (*begin)(struct ek_grad_hook *hook, const int *leaves, int count, bool create_graph);
    /* some: a gradient came, and was added to the leaf's. Else the leaf is as it was, and without a
     * gradient if it had none. */
    int (*arrived)(struct ek_grad_hook *hook, int leaf, bool some);
    /* status: 0, or the pass's negative status, whose error is pending. */
    int (*finish)(struct ek_grad_hook *hook, int status);
} ek_grad_hook;

/* Has the hook told about the leaf's gradients under this index. The leaf holds a reference, so a
 * hook that holds its leaves is freed only after it was taken away from them; NULL does that.
 * EK_E_STATE if the leaf has a hook already, EK_E_INVALID if it is no leaf. A pass that is under
 * way goes on with the hooks that it began with. The pieces of a sharded leaf (shards.h) are
 * leaves, and gradients arrive at them. */
int ek_leaf_set_grad_hook(ek_tensor *leaf, ek_grad_hook *hook, int index);

#endif
