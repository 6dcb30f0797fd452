/* Autocast in replicas: the workers work under the caller's mode, N devices give what one gives,
 * and what is computed again is computed so. */
#include <stdatomic.h>

#include "core/thread.h"
#include "kit/models.h"
#include "ops/autocast.h"
#include "parallel_setup.h"

enum { PARAMETERS = 6, SAMPLES = 7 };

/* What is kept of the storage in bf16, a borrowed reference. */
static ek_storage *narrow_elements(ek_storage *storage)
{
    ek_narrow_found found;
    assert_ok(ek_narrow_find(storage, EK_BF16, 0, &found));
    ek_object_release(found.elements);
    return found.elements;
}

static const char *const paths[PARAMETERS] = {"0.weight", "1.weight", "1.bias",
                                              "3.weight", "5.weight", "5.bias"};

/* With the statistics of all chunks, so that chunks don't matter; the same numbers each time. */
static ek_module *make_conv_net(bool checkpoints)
{
    ek_manual_seed(7);
    ek_module *conv = ek_conv2d(3, 8, 3, .padding = 1, .bias = false);
    ek_module *second = ek_conv2d(8, 4, 3, .stride = 2, .bias = false);
    if (checkpoints) {
        conv = ek_checkpoint(conv);
        second = ek_checkpoint(second);
    }
    ek_module *net = ek_sequential(conv, ek_sync_batch_norm(8), ek_relu(), second,
                                   ek_flatten(1, -1), ek_linear(16, 5));
    assert_made(net);
    return net;
}

static ek_tensor *inputs(void)
{
    return ek_to_dtype(normal(3, EK_SHAPE(SAMPLES, 3, 6, 6), EK_F64, ek_cpu()), EK_F32);
}

typedef struct outcome {
    double loss;
    ek_tensor *gradients[PARAMETERS]; /* on cpu */
} outcome;

/* One step; backward in the region or after it. */
static outcome step(ek_module *net, bool autocast, bool backward_inside)
{
    outcome result;
    int64_t classes[SAMPLES] = {0, 1, 2, 3, 4, 0, 2};
    ek_tensor *target =
        ek_to_device(ek_from_data(classes, EK_SHAPE(SAMPLES), .dtype = EK_I64), test_device(0));
    ek_tensor *x = ek_to_device(inputs(), test_device(0));
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    ek_tensor *out = ek_apply(net, x);
    assert_made(out);
    ck_assert_int_eq(out->dtype, autocast ? EK_BF16 : EK_F32);
    ek_tensor *loss = ek_f_cross_entropy(out, target);
    assert_made(loss);
    ck_assert_int_eq(loss->dtype, EK_F32);
    if (!backward_inside)
        ek_autocast_end(&region);
    assert_ok(ek_backward(loss));
    if (backward_inside)
        ek_autocast_end(&region);
    ck_assert_ptr_null(ek_thread_self()->casts);
    assert_ok(ek_item(loss, &result.loss));
    for (int i = 0; i < PARAMETERS; i++) {
        ek_tensor *w = ek_module_tensor(net, paths[i]);
        assert_made(w);
        assert_made(w->grad);
        ck_assert_int_eq(w->dtype, EK_F32);
        ck_assert_int_eq(w->grad->dtype, EK_F32);
        result.gradients[i] = ek_to_device(ek_clone(w->grad), ek_cpu());
        assert_made(result.gradients[i]);
    }
    return result;
}

static void assert_same(const outcome *a, const outcome *b, double relative)
{
    ck_assert_double_le(fabs(a->loss - b->loss), relative * b->loss);
    for (int i = 0; i < PARAMETERS; i++)
        assert_close_norm(a->gradients[i], b->gradients[i], relative);
}

TEST_LOOP(devices_give_what_one_gives, 0, 8)
{
    ek_module *one = held(make_conv_net(false));
    outcome exact = step(one, false, false);
    ek_module_zero_grad(one);
    outcome narrow = step(one, true, false);
    /* Each rounding is 2^-9; a chunk's weight gradient is rounded before it is added. */
    assert_same(&narrow, &exact, 0.02);
    ck_assert_double_ne(narrow.loss, exact.loss);
    ek_module *several = held(
        ek_data_parallel(make_conv_net(false), .device_ids = ek_devices(test_kind(), 1 + _i % 4)));
    for (int again = 0; again < 2; again++) {
        ek_module_zero_grad(several);
        outcome parallel = step(several, true, _i / 4);
        assert_same(&parallel, &narrow, 0.02);
    }
}

/* To the bit: the forward's casts again, on one device and on several. */
TEST_LOOP(computed_again_alike, 0, 2)
{
    static const int devices[] = {1, 3};
    outcome results[2];
    ek_use_deterministic_algorithms(true);
    for (int i = 0; i < 2; i++) {
        ek_module *net =
            ek_data_parallel(make_conv_net(i), .device_ids = ek_devices(test_kind(), devices[_i]));
        assert_made(net);
        results[i] = step(net, true, false);
        ek_module_free(net);
    }
    ek_use_deterministic_algorithms(false);
    assert_same(&results[1], &results[0], 0);
}

/* A region around all steps: what is remembered is replaced, not added to. */
TEST_LOOP(one_region_for_all_steps, 0, 2)
{
    ek_module *net = make_conv_net(true);
    assert_ok(ek_module_to_device(net, test_device(0)));
    if (_i > 0)
        net = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 3));
    assert_made(net);
    uint64_t in_use[3] = {0};
    ek_autocast region = ek_autocast_begin(EK_BF16);
    for (int number = 0; number < 5; number++) {
        ek_scope inner = ek_scope_begin();
        ek_tensor *out = ek_apply(net, ek_to_device(inputs(), test_device(0)));
        assert_ok(ek_backward(ek_mean(ek_square(out))));
        bool before = ek_set_grad_enabled(false);
        for (int i = 0; i < PARAMETERS; i++) {
            ek_tensor *w = ek_module_tensor(net, paths[i]);
            assert_made(ek_add_scaled_(w, w->grad, -0.01));
        }
        ek_set_grad_enabled(before);
        ek_scope_end(&inner);
        for (int d = 0; d < 3; d++) {
            if (number > 1)
                ck_assert_uint_eq(bytes_in_use(test_device(d)), in_use[d]);
            in_use[d] = bytes_in_use(test_device(d));
        }
    }
    ek_module_free(net);
    ek_autocast_end(&region);
}

/* ---- what is cast once ---- */

static ek_storage *narrow_of(ek_tensor *w)
{
    ek_tensor *y = ek_autocast_narrow(w);
    assert_made(y);
    ck_assert_int_eq(y->dtype, EK_BF16);
    ck_assert(ek_same_layout(y, w));
    assert_close(y, ek_to_dtype(w, EK_BF16), 0, 0);
    return y->storage;
}

/* A slab is cast at once, kept from region to region and for what is computed again, and cast anew
 * when one of its members was written. */
TEST(a_slab_is_cast_at_once)
{
    ek_module *net = make_conv_net(false);
    assert_ok(ek_module_to_device(net, test_device(0)));
    held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2)));
    ek_tensor *first = ek_module_tensor(net, "0.weight"), *last = ek_module_tensor(net, "5.bias");
    ek_storage *kept = NULL;
    for (int number = 0; number < 2; number++) {
        ek_autocast region = ek_autocast_begin(EK_BF16);
        ek_storage *narrow = narrow_of(first);
        ck_assert(narrow_of(last) == narrow &&
                  narrow_of(ek_module_tensor(net, "3.weight")) == narrow);
        ck_assert_int_eq(narrow->category, EK_MEMORY_PARAMETER);
        ck_assert_uint_eq(2 * narrow->nbytes, first->storage->nbytes);
        ek_thread_self()->modes.flags |= EK_MODE_ALONE;
        ck_assert_ptr_eq(narrow_of(last), narrow);
        ek_thread_self()->modes.flags &= ~(unsigned)EK_MODE_ALONE;
        ck_assert(!kept || kept == narrow);
        kept = narrow;
        ek_autocast_end(&region);
    }
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_mul_scalar_(last, 2));
    ek_set_grad_enabled(before);
    ck_assert_ptr_null(narrow_elements(last->storage));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ck_assert_ptr_eq(narrow_of(first), narrow_of(last));
    ek_autocast_end(&region);
}

/* In one region too, over several steps. */
TEST(casts_of_older_weights_hold_no_slab)
{
    ek_module *net = make_conv_net(false);
    assert_ok(ek_module_to_device(net, test_device(0)));
    held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2)));
    ek_tensor *first = ek_module_tensor(net, "0.weight"), *last = ek_module_tensor(net, "5.bias");
    ek_tensor *second = ek_module_tensor(net, "3.weight");
    bool before = ek_set_grad_enabled(false);
    ek_autocast region = ek_autocast_begin(EK_BF16);
    uint64_t in_use = 0;
    for (int step = 0; step < 3; step++) {
        ek_scope forward = ek_scope_begin();
        ck_assert_ptr_eq(narrow_of(first), narrow_of(second));
        if (step == 0)
            narrow_of(last);
        ek_scope_end(&forward);
        in_use = step ? in_use : bytes_in_use(test_device(0));
        ck_assert_uint_eq(bytes_in_use(test_device(0)), in_use);
        assert_made(ek_mul_scalar_(first, 2));
        assert_made(ek_mul_scalar_(second, 2));
        assert_made(ek_mul_scalar_(last, 2));
    }
    ek_autocast_end(&region);
    ek_set_grad_enabled(before);
}

/* What is cast while another thread writes is not kept: some of it may be older. */
TEST(casts_that_met_a_write_are_not_kept)
{
    ek_tensor *w = ek_ones(EK_SHAPE(4), EK_F32), *y = ek_to_dtype(w, EK_BF16);
    assert_made(y);
    for (int kept = 0; kept < 2; kept++) {
        ek_narrow_found found;
        assert_ok(ek_narrow_find(w->storage, EK_BF16, 4, &found));
        ck_assert_ptr_null(found.elements);
        if (!kept)
            ek_tensor_touch(w);
        ek_narrow_keep(w->storage, y->storage, EK_BF16, 4, found.writes);
        assert_ok(ek_narrow_find(w->storage, EK_BF16, 4, &found));
        ck_assert_ptr_eq(found.elements, kept ? y->storage : NULL);
        ek_object_release(found.elements);
        assert_ok(ek_narrow_find(w->storage, EK_F16, 4, &found));
        ck_assert_ptr_null(found.elements);
    }
}

/* If a small part is read between two writes, the others are not cast with it again. */
TEST(small_parts_of_slabs_are_cast_alone)
{
    ek_module *net = make_conv_net(false);
    assert_ok(ek_module_to_device(net, test_device(0)));
    held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2)));
    ek_tensor *bias = ek_module_tensor(net, "5.bias");
    bool before = ek_set_grad_enabled(false);
    for (int number = 0; number < 3; number++) {
        ek_autocast region = ek_autocast_begin(EK_BF16);
        size_t nbytes = narrow_of(bias)->nbytes;
        ck_assert_uint_eq(nbytes, number ? 5 * 2 : bias->storage->nbytes / 2);
        ek_autocast_end(&region);
        assert_made(ek_mul_scalar_(bias, 2));
        ck_assert_ptr_null(narrow_elements(bias->storage));
    }
    ek_set_grad_enabled(before);
}

/* ---- the mode of workers ---- */

static atomic_int seen[4];
static _Atomic(ek_storage *) narrow_on[4];

/* Notes the mode and where its weight's cast lies, and multiplies in a region of its own, twice
 * with one weight. */
typedef struct witness {
    ek_module module;
    ek_tensor *weight;
} witness;

static ek_value witness_forward(ek_module *module, const ek_args *args)
{
    witness *self = (witness *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    atomic_store(&seen[ek_tensor_device(x).index], ek_autocast_dtype() == EK_BF16 ? 2 : 1);
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ek_tensor *y = ek_matmul(ek_matmul(x, self->weight), self->weight);
    atomic_store(&narrow_on[ek_tensor_device(x).index], narrow_elements(self->weight->storage));
    ek_autocast_end(&region);
    return ek_value_of_tensor(y);
}

MODULE_TYPE(witness, witness)

TEST(workers_inherit)
{
    witness *self = new_module(&witness_type);
    assert_ok(ek_register_parameter(&self->module, "weight", &self->weight,
                                    ek_ones(EK_SHAPE(3, 3), EK_F32)));
    ek_module *all =
        held(ek_data_parallel(&self->module, .device_ids = ek_devices(test_kind(), 4)));
    for (int on = 0; on < 2; on++) {
        ek_storage *kept[4]; /* by replicas too: all forwards are of the same weights */
        for (int i = 0; i < 4; i++) {
            atomic_store(&seen[i], 0);
            kept[i] = atomic_load(&narrow_on[i]);
        }
        ek_autocast region = ek_autocast_begin(on ? EK_BF16 : EK_F32);
        ek_tensor *y = ek_apply(all, ek_ones(EK_SHAPE(8, 3), EK_F32));
        ek_autocast_end(&region);
        assert_made(y);
        ck_assert_int_eq(y->dtype, EK_BF16);
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(atomic_load(&seen[i]), 1 + on);
        for (int i = 0; i < 4; i++)
            ck_assert(atomic_load(&narrow_on[i]) && (!on || atomic_load(&narrow_on[i]) == kept[i]));
        ek_module_zero_grad(all);
        assert_ok(ek_backward(ek_sum(ek_to_dtype(y, EK_F32))));
        /* d/dw of 8 rows of 1 w w, w = 1: 8 (3 + 3) */
        ek_tensor *gradient = ek_tensor_grad(ek_module_tensor(all, "weight"));
        assert_made(gradient);
        ck_assert_int_eq(gradient->dtype, EK_F32);
        for (int i = 0; i < 9; i++)
            ck_assert_double_eq(element(gradient, i), 48);
    }
}
