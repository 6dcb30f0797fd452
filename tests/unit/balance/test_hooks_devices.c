/* Hooks under both wrappers: those of a parameter see what all devices give it, those of modules
 * see the replicas. */
#include <pthread.h>

#include "balance_setup.h"
#include "kit/tensors.h"

enum { BATCH = 10, DEVICES = 4 };

typedef struct pair {
    ek_module *model, *criterion;
} pair;

static ek_module *make_layer(void)
{
    ek_manual_seed(7);
    ek_module *layer = ek_linear(3, 2);
    assert_ok(ek_module_to_dtype(layer, EK_F64));
    return layer;
}

/* The layer alone, under the classic wrapper, and under the balanced one. */
static pair make_pair(int way)
{
    ek_module *criterion = ek_mse_loss(.reduction = EK_SUM);
    ek_device_list devices = ek_devices(test_kind(), DEVICES);
    pair made = {make_layer(), criterion};
    if (way == 1)
        made.model = ek_data_parallel(made.model, devices);
    if (way == 2)
        made = (pair){ek_data_parallel_model(made.model, .device_ids = devices),
                      ek_data_parallel_criterion(criterion, .device_ids = devices)};
    assert_made(made.model);
    assert_made(made.criterion);
    return made;
}

/* A pass over fixed samples; returns the input, which requires a gradient. */
static ek_tensor *run_pass(pair of, bool alone)
{
    ek_device device = alone ? ek_cpu() : test_device(0);
    ek_tensor *x = ek_to_device(normal(3, EK_SHAPE(BATCH, 3), EK_F64, ek_cpu()), device);
    ek_tensor *target = ek_to_device(normal(4, EK_SHAPE(BATCH, 2), EK_F64, ek_cpu()), device);
    x = ek_clone(x);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_value out = ek_forward(of.model, x);
    ck_assert_int_ne(out.kind, EK_VALUE_ERROR);
    ek_tensor *loss = ek_loss(of.criterion, out, ek_value_of_tensor(target));
    assert_made(loss);
    assert_ok(ek_backward(loss));
    return x;
}

static void free_pair(pair of)
{
    ek_module_free(of.model);
    ek_module_free(of.criterion);
}

/* ---- of a parameter ---- */

typedef struct sight {
    int calls;
    ek_tensor *gradient; /* kept */
} sight;

static ek_tensor *doubled(ek_tensor *gradient, void *user)
{
    sight *self = user;
    self->calls++;
    ek_release(self->gradient);
    self->gradient = ek_keep(ek_clone(gradient));
    return ek_mul_scalar(gradient, 2);
}

TEST_LOOP(a_parameters_hook_sees_the_sum, 1, 3)
{
    pair alone = make_pair(0), several = make_pair(_i);
    run_pass(alone, true);
    ek_tensor *expected = ek_tensor_grad(ek_module_tensor(alone.model, "weight"));
    ek_tensor *weight = ek_module_tensor(several.model, "weight");
    sight self = {0};
    ck_assert_int_gt(ek_tensor_register_hook(weight, doubled, &self), 0);
    for (int pass = 1; pass <= 2; pass++) {
        run_pass(several, false);
        ck_assert_int_eq(self.calls, pass);
        ck_assert(ek_device_equal(ek_tensor_device(self.gradient), test_device(0)));
        assert_close(ek_to_device(self.gradient, ek_cpu()), expected, 1e-13, 1e-13);
        assert_close(ek_to_device(ek_tensor_grad(weight), ek_cpu()),
                     ek_mul_scalar(expected, 2 * pass), 1e-13, 1e-13);
    }
    ek_release(self.gradient);
    free_pair(alone);
    free_pair(several);
}

/* ---- of a module ---- */

/* Called on the threads of the devices, side by side. */
typedef struct crowd {
    pthread_mutex_t lock;
    int before, after, backward;
    int64_t samples, gradients;
    int64_t id; /* of the hook after the forward */
} crowd;

static ek_value crowd_before(ek_module *module, const ek_args *args, void *user)
{
    crowd *self = user;
    pthread_mutex_lock(&self->lock);
    self->before++;
    self->samples += ek_tensor_size(ek_arg_tensor(args, 0), 0);
    pthread_mutex_unlock(&self->lock);
    ck_assert_str_eq(module->type->name, "linear");
    return ek_value_of_tensor(ek_mul_scalar(ek_arg_tensor(args, 0), 2));
}

/* Removes itself, from the replica. */
static ek_value crowd_after(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    crowd *self = user;
    pthread_mutex_lock(&self->lock);
    self->after++;
    pthread_mutex_unlock(&self->lock);
    ck_assert(module->is_replica);
    assert_ok(ek_module_remove_hook(module, self->id));
    return ek_value_none();
}

static ek_value crowd_backward(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    crowd *self = user;
    pthread_mutex_lock(&self->lock);
    self->backward++;
    self->gradients += ek_tensor_size(ek_value_tensor(ek_value_at(grad_outputs, 0)), 0);
    pthread_mutex_unlock(&self->lock);
    return EK_LIST(ek_mul_scalar(ek_value_tensor(ek_value_at(grad_inputs, 0)), -3));
}

/* Each replica's call has the hooks, and what a hook changes in a replica lasts for this call. */
TEST_LOOP(replicas_call_the_hooks, 1, 3)
{
    pair alone = make_pair(0), several = make_pair(_i);
    crowd one = {.lock = PTHREAD_MUTEX_INITIALIZER}, self = {.lock = PTHREAD_MUTEX_INITIALIZER};
    ek_module *layer = ek_module_child(several.model, 0);
    ek_module_register_forward_pre_hook(alone.model, crowd_before, &one);
    ek_module_register_full_backward_hook(alone.model, crowd_backward, &one);
    ck_assert_int_gt(ek_module_register_forward_pre_hook(layer, crowd_before, &self), 0);
    self.id = ek_module_register_forward_hook(layer, crowd_after, &self);
    ck_assert_int_gt(ek_module_register_full_backward_hook(layer, crowd_backward, &self), 0);
    for (int pass = 1; pass <= 2; pass++) {
        ek_tensor *x = run_pass(alone, true), *y = run_pass(several, false);
        assert_close(ek_to_device(ek_tensor_grad(y), ek_cpu()), ek_tensor_grad(x), 1e-13, 1e-13);
        assert_close(ek_to_device(ek_tensor_grad(ek_module_tensor(several.model, "weight")),
                                  ek_cpu()),
                     ek_tensor_grad(ek_module_tensor(alone.model, "weight")), 1e-13, 1e-13);
        ck_assert_int_eq(one.before, pass);
        ck_assert_int_eq(self.before, DEVICES * pass);
        ck_assert_int_eq(self.after, DEVICES * pass);
        ck_assert_int_eq(self.backward, DEVICES * pass);
        ck_assert_int_eq(self.samples, BATCH * pass);
        ck_assert_int_eq(self.gradients, BATCH * pass);
    }
    assert_ok(ek_module_remove_hook(layer, self.id));
    free_pair(alone);
    free_pair(several);
}
