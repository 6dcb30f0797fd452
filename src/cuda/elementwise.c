/* elementwise.c: unary and binary operations, comparisons, choices, random numbers. */
#include "cuda/launches.h"
#include "cuda/runtime.h"
#include "kernels/operations.h"
#include "kernels/stage.h"

static int elementwise_check_dtype(bool has_integers, const char *kind, int op, ek_dtype dtype)
{
    if (has_integers || ek_dtype_is_floating(dtype))
        return 0;
    return EK_FAIL(EK_E_DTYPE, "%s operation %d takes a floating dtype, not %s", kind, op,
                   ek_dtype_name(dtype));
}

int ek_cuda_unary(ek_dev *dev, ek_unary op, ek_tensor *out, const ek_tensor *x, double a, double b)
{
    const ek_cuda_walk walk = ek_cuda_walk_of(2, (const ek_tensor *[]){out, x});
    EK_TRY(elementwise_check_dtype(ek_unary_has_integers(op), "unary", (int)op, x->dtype));
    EK_CUDA_RUN(dev, "unary",
                walk.count == 0
                    ? 0
                    : ek_cuda_launch_unary(&stream, ek_unary_simplest(op, a), &walk, a, b));
}

int ek_cuda_binary(ek_dev *dev, ek_binary op, ek_tensor *out, const ek_tensor *x,
                   const ek_tensor *y, double a)
{
    const ek_cuda_walk walk = ek_cuda_walk_of(3, (const ek_tensor *[]){out, x, y});
    EK_TRY(elementwise_check_dtype(ek_binary_has_integers(op), "binary", (int)op, x->dtype));
    EK_CUDA_RUN(dev, "binary", walk.count == 0 ? 0 : ek_cuda_launch_binary(&stream, op, &walk, a));
}

int ek_cuda_compare(ek_dev *dev, ek_compare op, ek_tensor *out, const ek_tensor *x,
                    const ek_tensor *y)
{
    const ek_cuda_walk walk = ek_cuda_walk_of(3, (const ek_tensor *[]){out, x, y});
    EK_CUDA_RUN(dev, "compare", walk.count == 0 ? 0 : ek_cuda_launch_compare(&stream, op, &walk));
}

int ek_cuda_where(ek_dev *dev, ek_tensor *out, const ek_tensor *condition, const ek_tensor *x,
                  const ek_tensor *y)
{
    const ek_cuda_walk walk = ek_cuda_walk_of(4, (const ek_tensor *[]){out, condition, x, y});
    EK_CUDA_RUN(dev, "where", walk.count == 0 ? 0 : ek_cuda_launch_where(&stream, &walk));
}

static int elementwise_draw_rows(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw)
{
    const ek_tensor *out = tensors->out, *x = tensors->x, *residual = tensors->residual;
    const ek_cuda_draw_job job = {.count = ek_count(out),
                                  .dtype = out->dtype,
                                  .x_dtype = x ? x->dtype : out->dtype,
                                  .out = ek_tensor_address(out),
                                  .x = x ? ek_tensor_address(x) : NULL,
                                  .residual = residual ? ek_tensor_address(residual) : NULL};
    EK_CUDA_RUN(dev, "draw", ek_cuda_launch_draw(&stream, draw, &job));
}

int ek_cuda_draw(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw)
{
    return ek_stage_draw(dev, tensors, draw, elementwise_draw_rows);
}
