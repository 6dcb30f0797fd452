/* test_recurrent_parallel.c: recurrent networks on several devices. */
#include "kit/models.h"
#include "parallel_setup.h"

/* A network of sequences that gives its output alone. */
typedef struct tagger {
    ek_module module;
    ek_module *lstm, *head;
} tagger;

static ek_value tagger_forward(ek_module *module, const ek_args *args)
{
    tagger *self = (tagger *)module;
    ek_value result = ek_forward(self->lstm, ek_arg(args, 0), ek_value_none(), ek_arg(args, 1));
    return ek_value_of_tensor(ek_apply(self->head, ek_value_tensor(ek_value_at(result, 0))));
}

MODULE_TYPE(tagger, tagger)

static ek_module *make_tagger(void)
{
    ek_manual_seed(7);
    tagger *self = new_module(&tagger_type);
    ek_register_module(&self->module, "lstm", &self->lstm,
                       ek_lstm(3, 4, .num_layers = 2, .bidirectional = true, .batch_first = true));
    ek_register_module(&self->module, "head", &self->head, ek_linear(8, 2));
    assert_ok(ek_module_to_dtype(&self->module, EK_F64));
    return &self->module;
}

typedef struct compared {
    ek_module *other;
    int count;
} compared;

static int compare_gradient(const char *path, ek_tensor *tensor, void *user)
{
    compared *c = user;
    ek_tensor *of_other = ek_tensor_grad(ek_module_tensor(c->other, path));
    assert_made(of_other);
    assert_close_norm(ek_to_device(of_other, ek_cpu()),
                      ek_to_device(ek_tensor_grad(tensor), ek_cpu()), 1e-13);
    c->count++;
    return 0;
}

TEST(two_devices_equal_one)
{
    static const int64_t steps[] = {6, 2, 1, 4, 5};
    ek_tensor *x = normal(3, EK_SHAPE(5, 6, 3), EK_F64, ek_cpu()),
              *lengths = ek_from_data(steps, EK_SHAPE(5), EK_I64);
    ek_module *net = held(make_tagger()),
              *model = held(ek_data_parallel(make_tagger(), ek_devices(test_kind(), 2)));
    ek_tensor *expected = ek_value_tensor(ek_forward(net, x, lengths));
    double loss = square_loss(expected);
    ek_tensor *out = ek_value_tensor(ek_forward(model, x, lengths));
    assert_on(out, test_device(0));
    assert_close(ek_to_device(out, ek_cpu()), expected, 1e-14, 1e-15);
    ck_assert_double_eq_tol(square_loss(out), loss, 1e-14 * loss);
    compared c = {model, 0};
    assert_ok(ek_module_parameters(net, compare_gradient, &c));
    ck_assert_int_eq(c.count, 2 * 2 * 4 + 2);
}
