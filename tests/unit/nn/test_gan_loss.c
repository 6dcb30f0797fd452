/* Losses of critics and generators: their formulas, gradients of first and second order, and what
 * data-parallel reduction asks. */
#include "unit.h"

enum { KINDS = 4, ROLES = 3 };

static double softplus(double x)
{
    return log1p(exp(-fabs(x))) + fmax(x, 0);
}

/* The table in gan.h. */
static double expected(ek_gan_loss_kind kind, ek_gan_role role, double d)
{
    bool fake = role == EK_GAN_CRITIC_FAKE;
    switch (kind) {
    case EK_GAN_WASSERSTEIN:
        return fake ? d : -d;
    case EK_GAN_HINGE:
        return role == EK_GAN_GENERATOR ? -d : fmax(0, fake ? 1 + d : 1 - d);
    case EK_GAN_LEAST_SQUARES:
        return fake ? d * d : (d - 1) * (d - 1);
    case EK_GAN_LOGISTIC:
        return fake ? softplus(d) : softplus(-d);
    }
    return NAN;
}

static ek_tensor *draw(ek_shape shape, double spread)
{
    ek_tensor *d = ek_empty(shape, .dtype = EK_F64);
    assert_made(d);
    assert_ok(ek_normal_(d, 0, spread, NULL));
    return d;
}

TEST(formulas)
{
    const ek_shape shapes[] = {EK_SHAPE(1), EK_SHAPE(7), EK_SHAPE(5, 1), EK_SHAPE(3, 1, 1, 1),
                               EK_SHAPE(2, 3, 4)};
    ek_manual_seed(11);
    for (int k = 0; k < KINDS * ROLES; k++) {
        ek_gan_loss_kind kind = (ek_gan_loss_kind)(k / ROLES);
        ek_gan_role role = (ek_gan_role)(k % ROLES);
        ek_module *criterion = ek_gan_loss(kind, role);
        assert_made(criterion);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            ek_tensor *d = draw(shapes[s], 3);
            int64_t count = ek_tensor_count(d);
            double mean = 0;
            for (int64_t i = 0; i < count; i++)
                mean += expected(kind, role, element(d, i)) / (double)count;
            ek_tensor *wanted = ek_scalar(mean, EK_F64, ek_cpu());
            assert_close(ek_loss(criterion, d), wanted, 1e-13, 1e-14);
            assert_close(ek_loss(criterion, ek_to_dtype(d, EK_F32)), ek_to_dtype(wanted, EK_F32),
                         1e-5, 1e-6);
            assert_close(ek_to_device(ek_loss(criterion, ek_to_device(d, test_device(0))),
                                      ek_cpu()),
                         wanted, 1e-13, 1e-14);
        }
        ek_module_free(criterion);
    }
}

/* Logits whose exponential overflows. */
TEST(large_outputs)
{
    const double large[] = {2000, -2000};
    ek_tensor *d = tensor_of(large, EK_SHAPE(2), EK_F32, ek_cpu());
    ek_module *criterion = ek_gan_loss(EK_GAN_LOGISTIC, EK_GAN_GENERATOR);
    assert_close(ek_loss(criterion, d), ek_scalar(1000, EK_F32, ek_cpu()), 1e-6, 0);
    ek_module_free(criterion);
}

static ek_tensor *loss_of(ek_tensor *const *inputs, int count, void *user)
{
    return ek_loss((ek_module *)user, inputs[0]);
}

TEST(gradients)
{
    ek_manual_seed(12);
    for (int k = 0; k < KINDS * ROLES; k++) {
        ek_module *criterion = ek_gan_loss((ek_gan_loss_kind)(k / ROLES), (ek_gan_role)(k % ROLES));
        ek_tensor *d = draw(EK_SHAPE(6, 1), 2);
        assert_ok(ek_tensor_set_requires_grad(d, true));
        assert_ok(ek_gradcheck(loss_of, &d, 1, .user = criterion));
        assert_ok(ek_gradgradcheck(loss_of, &d, 1, .user = criterion));
        ek_module_free(criterion);
    }
}

TEST(denominators_are_elements)
{
    static const ek_dtype dtypes[][2] = {{EK_F64, EK_F64}, {EK_F32, EK_F32}, {EK_BF16, EK_F32}};
    ek_module *criterion = ek_gan_loss(EK_GAN_HINGE, EK_GAN_CRITIC_REAL);
    for (int i = 0; i < 3; i++) {
        ek_tensor *d = ek_zeros(EK_SHAPE(300, 2), .dtype = dtypes[i][0], .device = test_device(0));
        const ek_value value = EK_VALUE(d);
        ek_tensor *count =
            criterion->type->denominator(criterion, &(const ek_args){&value, 1, ek_value_none()});
        assert_made(count);
        ck_assert_double_eq(element(count, 0), 600);
        ck_assert_int_eq(ek_tensor_dtype(count), dtypes[i][1]);
        ck_assert(ek_device_equal(ek_tensor_device(count), test_device(0)));
    }
    ck_assert(!criterion->type->is_sum);
    ek_module_free(criterion);
}

TEST(refusals)
{
    assert_refused(ek_gan_loss((ek_gan_loss_kind)4, EK_GAN_GENERATOR), EK_E_INVALID,
                   "4 is no kind of loss");
    assert_refused(ek_gan_loss((ek_gan_loss_kind)-1, EK_GAN_GENERATOR), EK_E_INVALID,
                   "-1 is no kind of loss");
    assert_refused(ek_gan_loss(EK_GAN_HINGE, (ek_gan_role)3), EK_E_INVALID, "3 is no role");
    ek_module *criterion = ek_gan_loss(EK_GAN_HINGE, EK_GAN_CRITIC_FAKE);
    ek_tensor *d = ek_ones(EK_SHAPE(2));
    assert_refused(ek_loss(criterion, d, d), EK_E_INVALID, "takes 1 input, not 2");
    assert_refused(ek_loss(criterion, ek_ones(EK_SHAPE(2), .dtype = EK_I64)), EK_E_DTYPE,
                   "has to be floating, not i64[2]");
    assert_refused(ek_loss(criterion, EK_LIST(d, d)), EK_E_INVALID, "takes 1 input, not 2");
    ek_module_free(criterion);
}
