/* optim_setup.h: parameters of odd sizes, on their own or in slabs, and gradients for them. */
#ifndef EK_TESTS_OPTIM_SETUP_H
#define EK_TESTS_OPTIM_SETUP_H

#include "autograd/graph.h"
#include "core/slab.h"
#include "unit.h"

enum { MEMBERS = 5 };

static inline ek_shape member_shape(int i)
{
    /* Counts 7, 48, 16, 1, 30: with and without padding to 16 elements. */
    static const ek_shape shapes[MEMBERS] = {
        {1, {7}}, {4, {2, 3, 4, 2}}, {2, {4, 4}}, {0, {0}}, {3, {5, 2, 3}}};
    return shapes[i];
}

static inline void random_leaves(ek_tensor **leaves)
{
    for (int i = 0; i < MEMBERS; i++) {
        ek_tensor *leaf = ek_empty(member_shape(i), .format = EK_CHANNELS_LAST);
        assert_ok(ek_normal_(leaf, 0, 1, NULL));
        assert_ok(ek_tensor_set_requires_grad(leaf, true));
        leaves[i] = leaf;
    }
}

/* Puts the leaves, and slots for their gradients, into slabs, as data-parallel wrappers do. */
static inline void move_into_slabs(ek_tensor **leaves)
{
    ek_slab *values = ek_slab_new(ek_tensor_dev(leaves[0]), leaves, MEMBERS);
    ek_slab *gradients = ek_slab_new(ek_tensor_dev(leaves[0]), leaves, MEMBERS);
    assert_made(values);
    assert_made(gradients);
    for (int i = 0; i < MEMBERS; i++) {
        assert_made(ek_copy_(values->members[i], ek_detach(leaves[i])));
        ek_tensor_rebind(leaves[i], values->members[i]);
        assert_ok(ek_leaf_set_grad_buffer(leaves[i], gradients->members[i]));
    }
    ek_object_release(values);
    ek_object_release(gradients);
}

/* Gives both sets the same gradients, except where bit i of `absent` is set. Those in slabs go to
 * their slots. */
static inline void give_gradients(ek_tensor **apart, ek_tensor **in_slabs, unsigned absent)
{
    for (int i = 0; i < MEMBERS; i++) {
        ek_tensor *gradient = ek_randn(member_shape(i));
        ek_tensor_set_grad(apart[i], NULL);
        ek_tensor_set_grad(in_slabs[i], NULL);
        if (absent >> i & 1)
            continue;
        assert_ok(ek_tensor_set_grad(apart[i], gradient));
        if (in_slabs[i]->grad_buffer) {
            assert_made(ek_copy_(in_slabs[i]->grad_buffer, gradient));
            assert_ok(ek_tensor_set_grad(in_slabs[i], in_slabs[i]->grad_buffer));
        } else {
            assert_ok(ek_tensor_set_grad(in_slabs[i], gradient));
        }
    }
}

#endif
