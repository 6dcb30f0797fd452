/* Initial values against PyTorch's. */
#include "unit.h"

/* X(name in the golden file, call) */
#define FILLS_OF(X)                                                                              \
    X(kaiming_out, ek_init_kaiming_uniform(t, 0.3, .mode = EK_FAN_OUT))                          \
    X(kaiming_relu, ek_init_kaiming_normal(t, .mode = EK_FAN_OUT, .nonlinearity = EK_GAIN_RELU)) \
    X(kaiming_tanh, ek_init_kaiming_normal(t, .nonlinearity = EK_GAIN_TANH))                     \
    X(kaiming_selu, ek_init_kaiming_uniform(t, .nonlinearity = EK_GAIN_SELU))                    \
    X(kaiming_linear, ek_init_kaiming_uniform(t, .nonlinearity = EK_GAIN_LINEAR))                \
    X(xavier_normal, ek_init_xavier_normal(t, 1.5))                                              \
    X(orthogonal_tall, ek_init_orthogonal(t, 1))                                                 \
    X(orthogonal_wide, ek_init_orthogonal(t, 0.7))                                               \
    X(orthogonal_square, ek_init_orthogonal(t, 2))                                               \
    X(trunc_normal, ek_init_trunc_normal(t, 0, 1, -2, 2))                                        \
    X(trunc_normal_far, ek_init_trunc_normal(t, 1, 0.02, 0.99, 1.05))                            \
    X(eye, ek_init_eye(t))                                                                       \
    X(dirac1d, ek_init_dirac(t, 1))                                                              \
    X(dirac2d, ek_init_dirac(t, 2))                                                              \
    X(dirac3d, ek_init_dirac(t, 1))                                                              \
    X(sparse, ek_init_sparse(t, 0.35, 0.5))

#define FILL_FUNCTION(name, call) \
    static int name(ek_tensor *t) \
    {                             \
        return call;              \
    }
FILLS_OF(FILL_FUNCTION)

#define FILL_ROW(name, call) {#name, name},
static const struct {
    const char *name;
    int (*fill)(ek_tensor *t);
} fills[] = {FILLS_OF(FILL_ROW)};
enum { FILLS = sizeof fills / sizeof *fills };

TEST_LOOP(values_are_pytorchs, 0, 2 * FILLS)
{
    const ek_dtype dtype = _i % 2 ? EK_F64 : EK_F32;
    char path[64];
    snprintf(path, sizeof path, "init/%s/%s", fills[_i / 2].name, _i % 2 ? "f64" : "f32");
    ek_tensor *wanted = golden("train.golden", path);
    ek_tensor *t = ek_full(7, ek_tensor_shape(wanted), .dtype = dtype);
    ek_manual_seed(11);
    assert_ok(fills[_i / 2].fill(t));
    const double tolerance = _i % 2 ? 1e-12 : 2e-6;
    assert_close(t, wanted, tolerance, tolerance);
    /* Parameters that require a gradient, and other orders of memory. */
    ek_tensor *leaf = ek_empty(ek_tensor_shape(wanted), .dtype = dtype, .format = EK_CHANNELS_LAST);
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    ek_manual_seed(11);
    assert_ok(fills[_i / 2].fill(leaf));
    ck_assert(ek_tensor_is_leaf(leaf));
    assert_close(ek_detach(leaf), wanted, tolerance, tolerance);
}

/* Also if columns are nearly parallel. */
TEST(large_matrices_are_orthogonal)
{
    enum { ROWS = 120, COLS = 77 };
    ek_tensor *t = ek_empty(EK_SHAPE(ROWS, COLS), .dtype = EK_F64);
    assert_ok(ek_init_orthogonal(t, 1));
    ek_tensor *product = ek_matmul(ek_transpose(t, 0, 1), t);
    for (int64_t i = 0; i < COLS; i++)
        for (int64_t j = 0; j < COLS; j++)
            ck_assert_double_eq_tol(element(product, i * COLS + j), i == j, 1e-13);
}

TEST(gains)
{
    ck_assert_double_eq_tol(ek_init_calculate_gain(EK_GAIN_LEAKY_RELU, 0.01), sqrt(2 / (1 + 1e-4)),
                            1e-15);
    ck_assert_double_eq(ek_init_calculate_gain(EK_GAIN_LINEAR, 5), 1);
    ck_assert_double_lt(ek_init_calculate_gain((ek_nonlinearity)9, 0), 0);
    assert_error(EK_E_INVALID, "no nonlinearity 9");
}

TEST(refuses)
{
    ek_tensor *flat = ek_ones(EK_SHAPE(3)), *square = ek_ones(EK_SHAPE(3, 3));
    ek_tensor *numbers = ek_ones(EK_SHAPE(3, 3), .dtype = EK_I64);
    assert_refused(ek_init_xavier_normal(flat, 1), EK_E_SHAPE, "2 dimensions or more");
    assert_refused(ek_init_kaiming_normal(square, .mode = (ek_fan_mode)4), EK_E_INVALID,
                   "no mode 4");
    assert_refused(ek_init_kaiming_normal(square, .nonlinearity = (ek_nonlinearity)9), EK_E_INVALID,
                   "no nonlinearity 9");
    assert_refused(ek_init_orthogonal(flat, 1), EK_E_SHAPE,
                   "init_orthogonal: a tensor of 2 or more dimensions is needed");
    assert_refused(ek_init_orthogonal(numbers, 1), EK_E_DTYPE, "a floating tensor");
    assert_refused(ek_init_trunc_normal(flat, 0, 0, -1, 1), EK_E_INVALID, "std 0");
    assert_refused(ek_init_trunc_normal(flat, 0, 1, 1, -1), EK_E_INVALID, "low 1 at most high -1");
    assert_refused(ek_init_eye(flat), EK_E_SHAPE, "a tensor of 2 dimensions");
    assert_refused(ek_init_dirac(square, 1), EK_E_SHAPE, "3 to 5 dimensions");
    assert_refused(ek_init_dirac(ek_ones(EK_SHAPE(3, 3, 3)), 2), EK_E_INVALID,
                   "3 output channels can't be divided into 2 groups");
    assert_refused(ek_init_sparse(square, 1.5, 1), EK_E_INVALID, "sparsity has to be 0 to 1");
    assert_refused(ek_init_eye(NULL), EK_E_INVALID, "the tensor is NULL");
    /* Nothing to fill. */
    ek_tensor *empty = ek_ones(EK_SHAPE(0, 3));
    assert_ok(ek_init_orthogonal(empty, 1));
    assert_ok(ek_init_eye(empty));
    assert_ok(ek_init_trunc_normal(empty, 0, 1, -1, 1));
}
