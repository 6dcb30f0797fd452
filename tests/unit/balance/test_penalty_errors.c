/* What ek_gradient_penalty refuses, in which words; nothing is leaked, and the next call works. */
#include "kit/models.h"
#include "penalty_setup.h"

static ek_tensor *samples(int n)
{
    return ek_to_device(normal(4, sample_shape(n), EK_F64, ek_cpu()), test_device(0));
}

TEST(samples_that_do_not_fit)
{
    ek_module *critic = held(seeded(smooth_critic, EK_F64));
    ek_tensor *real = normal(1, sample_shape(3), EK_F64, ek_cpu()),
              *fake = normal(2, sample_shape(3), EK_F64, ek_cpu());
    assert_refused(ek_gradient_penalty(critic, NULL, fake), EK_E_INVALID,
                   "wgan_gp needs real samples; real is NULL");
    assert_refused(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_WGAN_LP), EK_E_INVALID,
                   "wgan_lp needs fake samples; fake is NULL");
    assert_refused(ek_gradient_penalty(critic, NULL, fake, .kind = EK_PENALTY_DRAGAN), EK_E_INVALID,
                   "dragan needs real");
    assert_refused(ek_gradient_penalty(critic, NULL, fake, .kind = EK_PENALTY_R1), EK_E_INVALID,
                   "r1 needs real");
    assert_refused(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R2), EK_E_INVALID,
                   "r2 needs fake");
    assert_refused(ek_penalty_points(real, fake, (ek_penalty_kind)5, NULL), EK_E_INVALID,
                   "5 is no kind");
    assert_refused(ek_gradient_penalty(critic, real, fake, .kind = (ek_penalty_kind)-1),
                   EK_E_INVALID, "-1 is no kind");
    assert_refused(ek_gradient_penalty(critic, real, normal(2, sample_shape(2), EK_F64, ek_cpu())),
                   EK_E_SHAPE, "real is f64[3, 2, 4, 4] on cpu, but fake is f64[2, 2, 4, 4]");
    assert_refused(ek_gradient_penalty(critic, real, ek_to_dtype(fake, EK_F32)), EK_E_DTYPE,
                   "but fake is f32[3, 2, 4, 4]");
    assert_refused(ek_gradient_penalty(critic, real, ek_to_device(fake, test_device(1))),
                   EK_E_DEVICE, "but fake is f64[3, 2, 4, 4] on host:1");
    assert_refused(ek_gradient_penalty(critic, ek_zeros(EK_SHAPE(3, 2), .dtype = EK_I64),
                                       .kind = EK_PENALTY_R1),
                   EK_E_DTYPE, "real samples have to be floating, not i64[3, 2]");
    assert_refused(ek_gradient_penalty(critic, ek_zeros(EK_SHAPE(0, 2, 4, 4)),
                                       .kind = EK_PENALTY_R1),
                   EK_E_SHAPE, "at least one element, not f32[0, 2, 4, 4]");
    assert_refused(ek_gradient_penalty(critic, .fake = ek_scalar(1, EK_F64, ek_cpu()),
                                       .kind = EK_PENALTY_R2),
                   EK_E_SHAPE, "(N, ...)");
    assert_refused(ek_penalty_points(ek_ones(EK_SHAPE(1)), NULL, EK_PENALTY_DRAGAN, NULL),
                   EK_E_SHAPE, "there is only one");
    assert_made(ek_gradient_penalty(critic, real, fake));
}

/* Before any number is drawn. */
TEST(options_that_do_not_fit)
{
    ek_module *critic = held(seeded(smooth_critic, EK_F64));
    ek_tensor *real = normal(1, sample_shape(3), EK_F64, ek_cpu()),
              *fake = normal(2, sample_shape(3), EK_F64, ek_cpu());
    ek_generator *generator = ek_generator_new(5), *same = ek_generator_new(5);
    const double weights[] = {-1, NAN, INFINITY};
    const char *const names[] = {"not -1", "nan", "not inf"};
    for (int i = 0; i < 3; i++)
        assert_refused(ek_gradient_penalty(critic, real, fake, .weight = weights[i],
                                           .generator = generator),
                       EK_E_INVALID, names[i]);
    assert_refused(ek_gradient_penalty(.real = real, .fake = fake), EK_E_INVALID,
                   "the critic is NULL");
    ek_set_grad_enabled(false);
    assert_refused(ek_gradient_penalty(critic, real, fake, .generator = generator), EK_E_AUTOGRAD,
                   "gradient mode is off");
    ek_set_grad_enabled(true);
    ck_assert_uint_eq(ek_random_u32(generator), ek_random_u32(same));
    /* An error that is pending stays. */
    ck_assert_ptr_null(ek_add(real, ek_ones(EK_SHAPE(7), .dtype = EK_F64)));
    assert_refused(ek_gradient_penalty(critic, real, fake), EK_E_SHAPE, "add");
    ek_generator_free(generator);
    ek_generator_free(same);
}

/* ---- critics ---- */

typedef enum fault {
    TWICE,        /* (2 N, 1) */
    SCALAR,       /* the mean over the batch */
    LIST,         /* a list of one tensor */
    NO_HISTORY,   /* computed without gradients */
    NOT_OF_INPUT, /* does not depend on x */
    FAILS,        /* in the part with the last sample */
    FAULTS,
    TWO_NUMBERS /* (N, 2): no fault */
} fault;

static const struct {
    int status;
    const char *part;
} faults[FAULTS] = {{EK_E_SHAPE, "numbers for each sample"},
                    {EK_E_SHAPE, "numbers for each sample"},
                    {EK_E_INVALID, "one tensor, not a list"},
                    {EK_E_AUTOGRAD, "gradient penalty: ek_grad: output 0"},
                    {EK_E_AUTOGRAD, "has no part in"},
                    {EK_E_USER, "the last sample is bad"}};

typedef struct faulty {
    ek_module module;
    ek_module *body;
    ek_tensor *extra;
    fault fault;
} faulty;

static ek_value faulty_forward(ek_module *module, const ek_args *args)
{
    faulty *self = (faulty *)module;
    ek_tensor *x = ek_arg_tensor(args, 0), *d = ek_apply(self->body, x);
    switch (self->fault) {
    case TWICE:
        return ek_value_of_tensor(ek_cat((ek_tensor *[]){d, d}, 2, 0));
    case SCALAR:
        return ek_value_of_tensor(ek_mean(d));
    case LIST:
        return EK_LIST(d);
    case NO_HISTORY:
        return ek_value_of_tensor(ek_detach(d));
    case NOT_OF_INPUT:
        return ek_value_of_tensor(ek_add(ek_detach(d), self->extra));
    case FAILS:
        if (element(x, ek_tensor_count(x) - 1) == 99)
            return fail_with("the last sample is bad");
        return ek_value_of_tensor(d);
    case TWO_NUMBERS:
        return ek_value_of_tensor(ek_cat((ek_tensor *[]){d, d}, 2, 1));
    case FAULTS:
        break;
    }
    return ek_value_error();
}

MODULE_TYPE(faulty, faulty)

static ek_module *make_faulty(fault kind)
{
    faulty *self = new_module(&faulty_type);
    self->fault = kind;
    assert_ok(
        ek_register_module(&self->module, "body", &self->body, seeded(smooth_critic, EK_F64)));
    assert_ok(ek_register_parameter(&self->module, "extra", &self->extra,
                                    ek_zeros(EK_SHAPE(1), .dtype = EK_F64)));
    return &self->module;
}

TEST(critics_that_do_not_fit)
{
    for (int h = 0; h < WAYS; h++)
        for (int f = 0; f < FAULTS; f++) {
            ek_module *critic = on_devices(make_faulty((fault)f), (way)h, h == PLAIN ? 1 : 4);
            ek_tensor *real = samples(5);
            ek_fill_(ek_narrow(ek_reshape(real, EK_SHAPE(-1)), 0, 5 * 32 - 1, 1), 99);
            ck_assert_ptr_null(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R1));
            ck_assert_msg(ek_error_status() == faults[f].status &&
                              strstr(ek_error_message(), faults[f].part),
                          "way %d, fault %d: %s", h, f, ek_error_message());
            if (f == FAILS && h == BALANCED)
                ck_assert_ptr_nonnull(
                    strstr(ek_error_message(), device_text("replica 2 on host:2")));
            ek_error_clear();
            ek_module_free(critic);
        }
}

/* Of several numbers per sample the sum counts: twice the gradient, and so four times its square.
 */
TEST(critics_of_several_numbers)
{
    ek_module *single = held(seeded(smooth_critic, EK_F64));
    double wanted, value;
    assert_ok(ek_item(ek_gradient_penalty(single, ek_to_device(samples(5), ek_cpu()),
                                          .kind = EK_PENALTY_R1),
                      &wanted));
    for (int h = 0; h < WAYS; h++) {
        ek_module *critic = on_devices(make_faulty(TWO_NUMBERS), (way)h, h == PLAIN ? 1 : 4);
        assert_ok(ek_item(ek_gradient_penalty(critic, samples(5), .kind = EK_PENALTY_R1), &value));
        ck_assert_msg(fabs(value - 4 * wanted) <= 1e-12 * wanted, "way %d: %.17g, not %.17g", h,
                      value, 4 * wanted);
        ek_module_free(critic);
    }
}

TEST(critics_cut_along_another_dimension)
{
    ek_module *critic =
        held(ek_data_parallel(seeded(smooth_critic, EK_F64), ek_devices(test_kind(), 2), .dim = 1));
    assert_refused(ek_gradient_penalty(critic, samples(4), .kind = EK_PENALTY_R1), EK_E_INVALID,
                   "cut along dimension 1");
}

/* A device that cannot hold its chunk's activations: all goes on afterwards. */
TEST(out_of_memory)
{
    ek_module *critic = held(on_devices(seeded(conv_critic, EK_F64), BALANCED, 4));
    ek_tensor *real = samples(64);
    assert_ok(ek_backward(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R1)));
    int failures = 0;
    for (int room = 0; room < 40; room++) {
        ek_scope scope = ek_scope_begin();
        ek_memory_stats stats;
        assert_ok(ek_memory_trim(test_device(2)));
        assert_ok(ek_memory_get_stats(test_device(2), &stats));
        assert_ok(ek_memory_set_capacity(test_device(2), stats.in_use + (uint64_t)room * 1024));
        ek_tensor *penalty = ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R1);
        if (!penalty || ek_backward(penalty) < 0) {
            failures++;
            assert_error(EK_E_OUT_OF_MEMORY, "host:2");
        }
        ek_scope_end(&scope);
        assert_ok(ek_memory_set_capacity(test_device(2), 0));
    }
    ck_assert_int_gt(failures, 5);
    ek_module_zero_grad(critic);
    outcome o = run(critic, real, NULL, EK_PENALTY_R1, 1);
    ek_module *alone = held(seeded(conv_critic, EK_F64));
    outcome wanted = run(alone, ek_to_device(real, ek_cpu()), NULL, EK_PENALTY_R1, 1);
    assert_same_outcome(&o, &wanted, 1e-12);
}
