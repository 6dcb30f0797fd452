/* Saved tensors that were really modified in place: the sentence says which operation saved what,
 * on which device, and who wrote. */
#include "balance_setup.h"
#include "kit/models.h"

enum { INPUTS = 3 };

static ek_tensor *inputs(int batch)
{
    ek_generator *generator = ek_generator_new(5);
    ek_tensor *x = ek_empty(EK_SHAPE(batch, INPUTS), .dtype = EK_F64);
    assert_made(x);
    assert_ok(ek_normal_(x, 0, 1, generator));
    ek_generator_free(generator);
    return x;
}

/* linear(3, 5), tanh, linear(5, 2), tanh. Backward through the second linear reads its weight. */
static ek_module *make_model(void)
{
    ek_manual_seed(7);
    ek_module *net = ek_sequential(ek_linear(INPUTS, 5), ek_tanh(), ek_linear(5, 2), ek_tanh());
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_module *model = ek_data_parallel_model(net, ek_devices(test_kind(), 3));
    assert_made(model);
    return model;
}

/* The loss of one device alone. */
static ek_tensor *loss_of(ek_value out, int device)
{
    return ek_mean(ek_square(ek_value_tensor(ek_value_at(out, device))));
}

/* The loss of all. */
static ek_tensor *loss_of_all(ek_value out)
{
    ek_tensor *losses[EK_MAX_DEVICES];
    for (int i = 0; i < ek_value_length(out); i++)
        losses[i] = loss_of(out, i);
    return ek_reduce_add(losses, ek_value_length(out), ek_tensor_device(losses[0]));
}

/* The pending error says that `operation` saved a tensor on `device` (NULL: any of them) and
 * `writer` modified it. */
static void assert_modified(const char *operation, const char *device, const char *writer)
{
    char part[200];
    snprintf(part, sizeof part, "%s saved f64[", operation);
    ck_assert_msg(strstr(ek_error_message(), part), "no \"%s\" in: %s", part, ek_error_message());
    snprintf(part, sizeof part, "%s%s for its backward at version ", device ? "on " : "",
             device ? device_text(device) : "");
    ck_assert_msg(strstr(ek_error_message(), part), "no \"%s\" in: %s", part, ek_error_message());
    snprintf(part, sizeof part, ", but %s modified it in place since (version ", writer);
    assert_error(EK_E_MODIFIED, part);
}

TEST(by_the_optimizer)
{
    ek_module *model = held(make_model());
    ek_optimizer *optimizer = held(ek_sgd(model, .lr = 0.1));
    ek_tensor *first = loss_of_all(ek_forward(model, inputs(6)));
    ek_value second = ek_forward(model, inputs(7)), third = ek_forward(model, inputs(2));
    assert_ok(ek_backward(first));
    assert_ok(ek_step(optimizer));
    ck_assert_int_lt(ek_backward(loss_of(second, 0)), 0);
    assert_modified("linear", "host:0", "the optimizer's step");
    ck_assert_int_lt(ek_backward(loss_of_all(third)), 0);
    /* On the host the copies share the parameters' memory by now. */
    assert_modified("linear", test_kind() == EK_HOST ? NULL : "host:0", "the optimizer's step");
    ek_zero_grad(optimizer);
    assert_ok(ek_backward(loss_of_all(ek_forward(model, inputs(6)))));
}

TEST(by_the_broadcast_to_replicas)
{
    ek_module *model = held(make_model());
    ek_optimizer *optimizer = held(ek_adam(model));
    ek_tensor *first = loss_of_all(ek_forward(model, inputs(6)));
    ek_value old = ek_forward(model, inputs(6));
    assert_ok(ek_backward(first));
    assert_ok(ek_step(optimizer));
    ek_value new = ek_forward(model, inputs(6));
    for (int device = 1; device < 3; device++) {
        ck_assert_int_lt(ek_backward(loss_of(old, device)), 0);
        assert_modified("linear", device == 1 ? "host:1" : "host:2", "the broadcast to replicas");
    }
    assert_ok(ek_backward(loss_of_all(new)));
}

static void by_add(ek_tensor *x)
{
    assert_made(ek_add_(x, ek_scalar(1, EK_F64, ek_cpu())));
}

static void by_mul(ek_tensor *x)
{
    assert_made(ek_mul_scalar_(x, 2));
}

static void by_fill(ek_tensor *x)
{
    assert_made(ek_fill_(x, 0));
}

static void by_copy(ek_tensor *x)
{
    assert_made(ek_copy_(x, ek_clone(x)));
}

static void by_set_data(ek_tensor *x)
{
    double zeros[10] = {0};
    assert_ok(ek_set_data(x, zeros, (size_t)ek_tensor_count(x) * sizeof *zeros));
}

static void by_touch(ek_tensor *x)
{
    ek_tensor_touch(x);
}

static const struct {
    void (*write)(ek_tensor *x);
    const char *writer;
} writers[] = {{by_add, "add_"},   {by_mul, "mul_scalar_"},   {by_fill, "fill_"},
               {by_copy, "copy_"}, {by_set_data, "set_data"}, {by_touch, "a direct write"}};
enum { WRITERS = sizeof writers / sizeof *writers };

static void write_without_history(int index, ek_tensor *x)
{
    bool before = ek_set_grad_enabled(false);
    writers[index].write(x);
    ek_set_grad_enabled(before);
}

TEST_LOOP(by_a_write_to_a_parameter, 0, WRITERS)
{
    ek_module *model = held(make_model());
    ek_tensor *weight = ek_module_tensor(model, "2.weight");
    ek_value old = ek_forward(model, inputs(6));
    write_without_history(_i, weight);
    ck_assert_int_lt(ek_backward(loss_of_all(old)), 0);
    assert_modified("linear", "host:0", writers[_i].writer);
}

TEST_LOOP(by_a_write_to_a_replicas_output, 0, WRITERS)
{
    static const char *const names[] = {"host:0", "host:1", "host:2"};
    ek_module *model = held(make_model());
    for (int device = 0; device < 3; device++) {
        ek_value out = ek_forward(model, inputs(6));
        ek_tensor *loss = loss_of_all(out);
        write_without_history(_i, ek_value_tensor(ek_value_at(out, device)));
        ck_assert_int_lt(ek_backward(loss), 0);
        /* Both the square and the tanh before it saved this; the square's backward runs first. */
        assert_modified("square", names[device], writers[_i].writer);
        out = ek_forward(model, inputs(6));
        ek_tensor *sum = ek_sum(ek_value_tensor(ek_value_at(out, device)));
        write_without_history(_i, ek_value_tensor(ek_value_at(out, device)));
        ck_assert_int_lt(ek_backward(sum), 0);
        assert_modified("tanh", names[device], writers[_i].writer);
    }
}

/* ---- a module that needs its buffer for backward ---- */

typedef struct scaler {
    ek_module module;
    ek_tensor *scale; /* counts the forwards */
} scaler;

static ek_value scaler_forward(ek_module *module, const ek_args *args)
{
    scaler *self = (scaler *)module;
    bool before = ek_set_grad_enabled(false);
    ek_add_(self->scale, ek_scalar(1, EK_F64, ek_cpu()));
    ek_set_grad_enabled(before);
    return ek_value_of_tensor(ek_mul(ek_arg_tensor(args, 0), self->scale));
}

MODULE_TYPE(scaler, scaler)

static ek_module *make_scaler(bool broadcast_buffers, ek_running_stats running_stats)
{
    scaler *self = new_module(&scaler_type);
    assert_ok(ek_register_buffer(&self->module, "scale", &self->scale,
                                 ek_ones(EK_SHAPE(1), .dtype = EK_F64)));
    ek_module *model = ek_data_parallel_model(&self->module, ek_devices(test_kind(), 2),
                                              .broadcast_buffers = broadcast_buffers,
                                              .running_stats = running_stats);
    assert_made(model);
    return model;
}

TEST(by_what_happens_to_buffers)
{
    ek_tensor *x = inputs(4);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    /* A second forward writes the first replica's buffer itself and sends it to the second. */
    ek_module *model = make_scaler(true, EK_RUNNING_STATS_FIRST);
    ek_value old = ek_forward(model, x);
    ek_value new = ek_forward(model, x);
    ck_assert_int_lt(ek_backward(ek_sum(ek_value_tensor(ek_value_at(old, 0)))), 0);
    assert_modified("mul", "host:0", "add_");
    ck_assert_int_lt(ek_backward(ek_sum(ek_value_tensor(ek_value_at(old, 1)))), 0);
    assert_modified("mul", "host:1", "add_");
    assert_ok(ek_backward(loss_of_all(new)));
    ek_module_free(model);

    model = make_scaler(true, EK_RUNNING_STATS_AVERAGE);
    old = ek_forward(model, x);
    ck_assert_int_lt(ek_backward(ek_sum(ek_value_tensor(ek_value_at(old, 0)))), 0);
    assert_modified("mul", "host:0", "the average of running statistics");
    assert_ok(ek_backward(ek_sum(ek_value_tensor(ek_value_at(old, 1)))));
    ek_module_free(model);
}
