/* balance_setup.h: a small classifier over pixels, and ignored targets where a test wants them. */
#ifndef EK_TESTS_BALANCE_SETUP_H
#define EK_TESTS_BALANCE_SETUP_H

#include "kit/devices.h"
#include "kit/held.h"
#include "kit/models.h"

enum { FEATURES = 3, CLASSES = 4, POINTS = 5, IGNORED = 255 };

FIXTURE(four_devices, free_held)

/* Scores (n, CLASSES, POINTS) from x (n, POINTS, FEATURES); the same numbers each time. f64. */
typedef struct scorer {
    ek_module module;
    ek_module *hidden, *last;
} scorer;

static inline ek_value scorer_forward(ek_module *module, const ek_args *args)
{
    scorer *self = (scorer *)module;
    ek_tensor *h = ek_f_tanh(ek_apply(self->hidden, ek_arg_tensor(args, 0)));
    return ek_value_of_tensor(ek_permute(ek_apply(self->last, h), EK_SHAPE(0, 2, 1)));
}

MODULE_TYPE(scorer, scorer)

static inline ek_module *make_scorer(void)
{
    ek_manual_seed(7);
    scorer *self = new_module(&scorer_type);
    assert_ok(ek_register_module(&self->module, "hidden", &self->hidden, ek_linear(FEATURES, 6)));
    assert_ok(ek_register_module(&self->module, "last", &self->last, ek_linear(6, CLASSES)));
    assert_ok(ek_module_to_dtype(&self->module, EK_F64));
    return &self->module;
}

static inline ek_tensor *make_inputs(int n)
{
    ek_generator *generator = ek_generator_new(3);
    ek_tensor *x = ek_empty(EK_SHAPE(n, POINTS, FEATURES), .dtype = EK_F64);
    assert_made(x);
    assert_ok(ek_normal_(x, 0, 1, generator));
    ek_generator_free(generator);
    return x;
}

/* Samples [from, to) are ignored; of the others every third point of even samples. */
static inline ek_tensor *make_targets(int n, int from, int to)
{
    int64_t values[64 * POINTS];
    for (int i = 0; i < n; i++)
        for (int p = 0; p < POINTS; p++) {
            bool ignored = (i >= from && i < to) || (i % 2 == 0 && p % 3 == 0);
            values[i * POINTS + p] = ignored ? IGNORED : (i * 7 + p * 3) % CLASSES;
        }
    ek_tensor *target = ek_from_data(values, EK_SHAPE(n, POINTS), .dtype = EK_I64);
    assert_made(target);
    return target;
}

static inline double value_of(ek_tensor *loss)
{
    double value;
    assert_made(loss);
    assert_ok(ek_item(loss, &value));
    return value;
}

static inline void assert_near(double a, double b, double relative)
{
    if (!(fabs(a - b) <= relative * fabs(b)))
        ck_abort_msg("%.17g, wanted %.17g", a, b);
}

/* Gradients of both scorers' parameters agree. */
static inline void assert_same_gradients(ek_module *a, ek_module *b, double relative)
{
    static const char *const paths[] = {"hidden.weight", "hidden.bias", "last.weight", "last.bias"};
    for (int i = 0; i < 4; i++) {
        ek_tensor *of_a = ek_tensor_grad(ek_module_tensor(a, paths[i]));
        ek_tensor *of_b = ek_tensor_grad(ek_module_tensor(b, paths[i]));
        assert_made(of_a);
        assert_made(of_b);
        assert_close_norm(ek_to_device(of_b, ek_cpu()), ek_to_device(of_a, ek_cpu()), relative);
    }
}

#endif
