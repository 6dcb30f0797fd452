/* Resampling: interpolate, grid_sample and affine_grid against PyTorch's values and gradients, and
 * grid_sample's second derivatives; finite differences; what is refused. On GPUs too. */
#include "table.h"

FIXTURE(two_devices, NULL)

/* options: mode, align_corners, recompute_scale_factor, antialias, three sizes, three factors in
 * thousandths */
static ek_tensor *interpolated(ek_tensor *x, const double *o)
{
    ek_interpolate_options options = {.x = x,
                                      .mode = (ek_upsample_mode)o[0],
                                      .align_corners = o[1] != 0,
                                      .recompute_scale_factor = o[2] != 0,
                                      .antialias = o[3] != 0};
    for (int i = 0; i < 3; i++) {
        options.sizes[i] = (int64_t)o[4 + i];
        options.scale_factors[i] = o[7 + i] / 1000;
    }
    return ek_f_interpolate_with(options);
}

FROM(.file = "resample.golden", .numbered = true, .inputs = {"x"}, .dy = "dy", .tolerance = 2e-6)
ROW(interpolate, BF16 | EMPTY, interpolated(x[0], o))

FROM(.file = "resample.golden", .numbered = true, .inputs = {"x", "grid"}, .dy = "dy",
     .tolerance = 2e-5)
ROW(grid_sample, SECOND | THIRD(0) | THIRD(2) | THIRD(12),
    ek_f_grid_sample(x[0], x[1], .mode = (ek_grid_mode)o[0], .padding_mode = (ek_grid_padding)o[1],
                     .align_corners = o[2] != 0))

/* options: align_corners, dimensions, sizes */
static ek_tensor *affine(ek_tensor *theta, const double *o)
{
    ek_shape size = {.ndim = (int)o[1]};
    for (int i = 0; i < size.ndim; i++)
        size.dims[i] = (int64_t)o[2 + i];
    return ek_f_affine_grid(theta, size, o[0] != 0);
}

FROM(.file = "resample.golden", .numbered = true, .inputs = {"theta"}, .dy = "dy",
     .tolerance = 2e-6)
ROW(affine_grid, BF16, affine(x[0], o))

/* ---- what has no golden ---- */

static ek_tensor *sequence(ek_shape shape, ek_dtype dtype)
{
    ek_tensor *x = ek_arange(ek_shape_count(&shape), dtype, ek_cpu());
    return ek_to_device(ek_reshape(ek_sin(x), shape), test_device(0));
}

/* Grids of large images, in both orders of memory: blocks of places end anywhere. */
TEST_LOOP(orders_agree, 0, 3)
{
    ek_tensor *x = sequence(EK_SHAPE(2, 19, 9, 11), EK_F64);
    ek_tensor *grid = ek_mul_scalar(sequence(EK_SHAPE(2, 23, 17, 2), EK_F64), 1.2);
    ek_tensor *last = ek_contiguous(x, EK_CHANNELS_LAST);
    ek_tensor *y[2], *dx[2], *dgrid[2];
    assert_ok(ek_tensor_set_requires_grad(grid, true));
    for (int k = 0; k < 2; k++) {
        ek_tensor *leaf = k == 0 ? x : last, *found[2];
        assert_ok(ek_tensor_set_requires_grad(leaf, true));
        y[k] = ek_f_grid_sample(leaf, grid, .mode = (ek_grid_mode)_i,
                                .padding_mode = (ek_grid_padding)_i);
        assert_made(y[k]);
        ek_tensor *loss = ek_sum(ek_square(y[k]));
        assert_ok(ek_grad(.outputs = &loss, .output_count = 1,
                          .inputs = (ek_tensor *[]){leaf, grid}, .input_count = 2,
                          .gradients = found));
        dx[k] = found[0];
        dgrid[k] = found[1];
    }
    assert_close(y[0], y[1], 1e-12, 1e-12);
    assert_close(dx[0], dx[1], 1e-12, 1e-12);
    assert_close(dgrid[0], dgrid[1], 1e-12, 1e-12);
}

/* What isn't finite reads nothing: with EK_GRID_ZEROS, or in bicubic mode. Otherwise NaN is the
 * first pixel's place, infinity the last's, or, reflected, the first's, as in PyTorch 1.13. Its
 * gradient is 0. */
TEST_LOOP(places_that_are_not_finite, 0, 9)
{
    const double nan = (double)NAN, inf = (double)INFINITY, at = -0.25; /* pixel 1 of 4 */
    const double values[] = {nan, 0, inf, 0, -inf, 0, at, inf, at, -inf, at, nan, inf, inf, at, 0};
    static const double edges[2][7] = {{5, 8, 5, 10, 2, 2, 12}, {5, 5, 5, 2, 2, 2, 1}};
    const ek_grid_mode mode = (ek_grid_mode)(_i / 3);
    const ek_grid_padding padding = (ek_grid_padding)(_i % 3);
    const bool nothing = padding == EK_GRID_ZEROS || mode == EK_GRID_BICUBIC;
    ek_tensor *x =
        ek_reshape(ek_add_scalar(ek_arange(12, EK_F64, ek_cpu()), 1), EK_SHAPE(1, 1, 3, 4));
    ek_tensor *grid =
        ek_to_device(ek_from_data(values, EK_SHAPE(1, 1, 8, 2), EK_F64), test_device(0));
    assert_ok(ek_tensor_set_requires_grad(grid, true));
    ek_tensor *y = ek_f_grid_sample(ek_to_device(x, test_device(0)), grid, .mode = mode,
                                    .padding_mode = padding);
    assert_made(y);
    for (int64_t i = 0; i < 7; i++)
        ck_assert_double_eq(element(y, i), nothing ? 0 : edges[padding == EK_GRID_REFLECTION][i]);
    ck_assert_double_eq(element(y, 7), 6);
    assert_ok(ek_backward(ek_sum(y)));
    for (int64_t i = 0; i < 3; i++)
        ck_assert_double_eq(element(ek_tensor_grad(grid), 2 * i), 0);
}

TEST(bad_calls_are_refused)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(1, 1, 4, 4)), *line = ek_zeros(EK_SHAPE(1, 1, 4));
    ek_tensor *grid = ek_zeros(EK_SHAPE(1, 2, 2, 2)), *deep = ek_zeros(EK_SHAPE(1, 1, 2, 2, 2));
    assert_refused(ek_f_interpolate(x), EK_E_INVALID, "neither a size nor a scale_factor");
    assert_refused(ek_f_interpolate(x, 3, .scale_factor = 2), EK_E_INVALID, "one of them");
    assert_refused(ek_f_interpolate(x, .scale_factor = -2), EK_E_INVALID, "got -2");
    assert_refused(ek_f_interpolate(x, .scale_factor = (double)NAN), EK_E_INVALID, "above 0");
    assert_refused(ek_f_interpolate(x, .scale_factor = 0.1), EK_E_SHAPE, "leaves nothing");
    assert_refused(ek_f_interpolate(x, -3), EK_E_INVALID, "the output");
    assert_refused(ek_f_interpolate(x, 3, .recompute_scale_factor = true), EK_E_INVALID,
                   "recompute_scale_factor is for");
    assert_refused(ek_f_interpolate(x, .sizes = {2, 2, 2}), EK_E_INVALID, "entry 3");
    assert_refused(ek_f_interpolate(x, 3, .mode = EK_LINEAR), EK_E_SHAPE, "3 dimensions");
    assert_refused(ek_f_interpolate(line, 3, .mode = EK_BICUBIC), EK_E_SHAPE, "4 dimensions");
    assert_refused(ek_f_interpolate(x, 3, .mode = (ek_upsample_mode)7), EK_E_INVALID, "mode");
    assert_refused(ek_f_interpolate(x, 3, .mode = EK_AREA, .align_corners = true), EK_E_INVALID,
                   "mode is EK_AREA");
    assert_refused(ek_f_interpolate(x, 3, .antialias = true), EK_E_INVALID, "antialias is for");
    assert_refused(ek_f_interpolate(ek_zeros(EK_SHAPE(1, 1, 0, 4)), 3), EK_E_SHAPE, "one pixel");
    assert_refused(ek_f_interpolate(ek_zeros(EK_SHAPE(4, 4)), 3), EK_E_SHAPE, "dimensions");
    assert_refused(ek_f_grid_sample(x, ek_zeros(EK_SHAPE(1, 2, 2, 3))), EK_E_SHAPE,
                   "the grid must be (1, height, width, 2), got [1, 2, 2, 3]");
    assert_refused(ek_f_grid_sample(x, ek_zeros(EK_SHAPE(2, 2, 2, 2))), EK_E_SHAPE, "must be (1,");
    assert_refused(ek_f_grid_sample(deep, grid), EK_E_SHAPE, "depth, height, width");
    assert_refused(ek_f_grid_sample(deep, deep, .mode = EK_GRID_BICUBIC), EK_E_SHAPE,
                   "of 4 dimensions");
    assert_refused(ek_f_grid_sample(x, ek_zeros(EK_SHAPE(1, 2, 2, 2), EK_F64)), EK_E_DTYPE, "");
    assert_refused(ek_f_grid_sample(x, grid, .mode = (ek_grid_mode)3), EK_E_INVALID, "mode");
    assert_refused(ek_f_grid_sample(x, grid, .padding_mode = (ek_grid_padding)-1), EK_E_INVALID,
                   "padding_mode");
    assert_refused(ek_f_grid_sample(ek_zeros(EK_SHAPE(1, 1, 0, 4)), grid), EK_E_SHAPE, "one pixel");
    assert_refused(ek_f_affine_grid(ek_zeros(EK_SHAPE(1, 2, 3)), EK_SHAPE(1, 4), false), EK_E_SHAPE,
                   "the size must be");
    assert_refused(ek_f_affine_grid(ek_zeros(EK_SHAPE(1, 2, 2)), EK_SHAPE(1, 1, 4, 4), false),
                   EK_E_SHAPE, "theta");
    assert_refused(ek_f_affine_grid(ek_zeros(EK_SHAPE(1, 2, 3)), EK_SHAPE(1, 1, 0, 4), false),
                   EK_E_INVALID, "the size");
}
