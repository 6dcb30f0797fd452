/* grad_hook.h: calls when leaves have their gradients.
 *
 * A hook belongs to a set of leaves and gives each an index. It is called in every ek_backward that
 * reaches one of these leaves; ek_grad calls no hooks. Reductions of gradients during backward,
 * over ranks for instance, are built on hooks.
 *
 * Note [Calls of a grad hook]
 *
 *     begin    on the caller's thread, before any backward runs. Gets exactly those of the hook's
 *              leaves that take part. If the pass succeeds, `arrived` is called once for each.
 *     arrived  on the thread that runs the ready queue of the leaf's device, when the leaf's
 *              gradient is complete. Leaves arrive in any order; leaves of several devices arrive
 *              concurrently.
 *     finish   on the caller's thread, after all queues have ended; once for each begin that
 *              succeeded, even if the pass failed.
 *
 * begin happens before every arrived, and every arrived before finish (C11's happens-before). The
 * engine holds no lock in these calls. A pass over leaves of several hooks calls begin of one hook
 * after the other, and finish likewise, in the order in which the walk through the graph finds
 * their leaves. Equal graphs give equal orders. Two threads that run backward concurrently make two
 * passes, whose calls have no order: a hook that doesn't support concurrent passes refuses the
 * second begin.
 *
 * Each call has a scope and the modes of the pass: gradient mode is on if create_graph, autocast is
 * off, and a rendezvous with other replicas is refused. Nodes that meet other ranks may be recorded
 * in begin and finish, and in arrived if only one device takes part. Each call returns 0 or a
 * negative status with the error set, which becomes the pass's error. If begin fails, the pass runs
 * nothing and can be repeated. */
#ifndef EK_AUTOGRAD_GRAD_HOOK_H
#define EK_AUTOGRAD_GRAD_HOOK_H

#include "core/tensor.h"

typedef struct ek_grad_hook {
    ek_object object;
    /* leaves[0 .. count), ascending, are the indices of the leaves that take part; the array is
     * borrowed until finish. create_graph: the gradients will have a graph themselves. meets: the
     * pass has nodes that meet other ranks. */
    int (*begin)(struct ek_grad_hook *hook, const int *leaves, int count, bool create_graph,
                 bool meets);
    /* some: the pass added to the leaf's gradient. Otherwise the leaf's gradient is unchanged; a
     * leaf that had no gradient still has none. */
    int (*arrived)(struct ek_grad_hook *hook, int leaf, bool some);
    /* status: 0, or the pass's negative status, whose error is pending. */
    int (*finish)(struct ek_grad_hook *hook, int status);
} ek_grad_hook;

/* Sets the leaf's hook, which is called with this index; NULL removes the hook. The leaf holds a
 * reference to the hook, so that a hook which holds its leaves must be removed from them to be
 * freed. EK_E_STATE if the leaf has a hook already, EK_E_INVALID if the tensor is no leaf. A pass
 * that has begun keeps its hooks. The shards of a sharded leaf (shards.h) are leaves, at which
 * gradients arrive. */
int ek_leaf_set_grad_hook(ek_tensor *leaf, ek_grad_hook *hook, int index);

#endif
