/* spatial.c: how convolutions, pools and resampling are written. An operation of one dimension has
 * been lifted to two, with a height of 1. */
#include <string.h>

#include "onnx/graph.h"
#include "ops/attributes.h"

/* ---- convolution ---- */

/* Sets what is added before and after each of the `dims` dimensions. */
static void spatial_pads(int64_t pads[6], int dims, const int64_t *before,
                         const int64_t *more_after)
{
    for (int i = 0; i < dims; i++) {
        pads[i] = before[i];
        pads[dims + i] = before[i] + (more_after ? more_after[i] : 0);
    }
}

/* The output padding is the size of a transposed convolution's output minus the size without output
 * padding. */
ROW(spatial_conv)
{
    const ek_conv_attributes *a = r->attributes;
    const ek_conv_params *p = &a->params;
    const bool transposed = strcmp(TYPE, "ConvTranspose") == 0;
    int64_t pads[6], rest[3] = {0};
    for (int i = 0; transposed && i < p->dims; i++)
        rest[i] = a->x.dims[2 + i] - ((a->y.dims[2 + i] - 1) * p->stride[i] - 2 * p->padding[i] +
                                      p->dilation[i] * (a->w.dims[2 + i] - 1) + 1);
    spatial_pads(pads, p->dims, p->padding, NULL);
    return NODE(TYPE, IN(X, ek_onnx_input(g, r, 1), ek_onnx_input(g, r, 2)),
                INTS("strides", p->stride, p->dims), INTS("pads", pads, 2 * p->dims),
                INTS("dilations", p->dilation, p->dims), INT("group", p->groups),
                INTS("kernel_shape", a->w.dims + 2, p->dims),
                transposed ? INTS("output_padding", rest, p->dims) : (ek_onnx_attribute){0});
}

/* ---- pools ---- */

/* Sets by how much windows reach beyond the padded input in each direction, which happens in ceil
 * mode. Returns true if some do. The pads include this excess, because ONNX's own ceil mode has
 * another number of windows. */
static bool spatial_excess(const ek_pool_attributes *a, int64_t excess[3])
{
    const ek_pool_params *p = &a->params;
    bool some = false;
    for (int i = 0; i < p->dims; i++) {
        const int64_t reach =
            (a->y.dims[2 + i] - 1) * p->stride[i] + p->dilation[i] * (p->kernel[i] - 1) + 1;
        excess[i] = reach - a->x.dims[2 + i] - 2 * p->padding[i];
        excess[i] = excess[i] > 0 ? excess[i] : 0;
        some = some || excess[i] > 0;
    }
    return some;
}

ROW(spatial_max_pool)
{
    const ek_pool_attributes *a = r->attributes;
    const ek_pool_params *p = &a->params;
    int64_t pads[6], excess[3];
    spatial_excess(a, excess);
    spatial_pads(pads, p->dims, p->padding, excess);
    return NODE(TYPE, IN(X), INTS("kernel_shape", p->kernel, p->dims),
                INTS("strides", p->stride, p->dims), INTS("pads", pads, 2 * p->dims),
                INTS("dilations", p->dilation, p->dims));
}

/* If padding counts and an excess doesn't, a node before the pool adds the padding. */
ROW(spatial_avg_pool)
{
    const ek_pool_attributes *a = r->attributes;
    const ek_pool_params *p = &a->params;
    const char *x = X;
    int64_t pads[6], excess[3], none[3] = {0}, margin[10] = {0};
    const bool splits = spatial_excess(a, excess) && p->count_include_pad;
    for (int i = 0; i < p->dims; i++)
        margin[2 + i] = margin[4 + p->dims + i] = p->padding[i];
    if (splits)
        x = NODE("Pad", IN(x, ek_onnx_integers(g, margin, 2 * (2 + p->dims))));
    spatial_pads(pads, p->dims, splits ? none : p->padding, excess);
    return NODE(TYPE, IN(x), INTS("kernel_shape", p->kernel, p->dims),
                INTS("strides", p->stride, p->dims), INTS("pads", pads, 2 * p->dims),
                INT("count_include_pad", p->count_include_pad && !splits));
}

/* Writes a pool of windows of equal size, or of one window for everything. */
ROW(spatial_adaptive_pool)
{
    const ek_pool_attributes *a = r->attributes;
    const int dims = a->x.ndim - 2;
    int64_t kernel[3];
    bool one = true;
    for (int i = 0; i < dims; i++) {
        if (a->x.dims[2 + i] % a->y.dims[2 + i] != 0)
            return ek_onnx_refuse(g, r, "has windows of different sizes, which ONNX doesn't have");
        kernel[i] = a->x.dims[2 + i] / a->y.dims[2 + i];
        one = one && a->y.dims[2 + i] == 1;
    }
    return one ? NODE("GlobalAveragePool", IN(X))
               : NODE(TYPE, IN(X), INTS("kernel_shape", kernel, dims),
                      INTS("strides", kernel, dims));
}

/* ---- resampling ---- */

/* Positions are computed from the factors, if these were given, else from the sizes. */
ROW(spatial_interpolate)
{
    static const char *const modes[] = {"nearest", "nearest", "linear", "cubic", "linear", "cubic"};
    const ek_interpolate_attributes *a = r->attributes;
    const ek_resample_kind kind = a->params.kind;
    const bool nearest = kind == EK_RESAMPLE_NEAREST, antialias = kind > EK_RESAMPLE_CUBIC;
    const char *scales = "", *sizes = "";
    float factors[5] = {1, 1, 1, 1, 1};
    bool factor = false;
    if (antialias && g->opset < 18)
        return ek_onnx_refuse(g, r, "with antialias needs .opset = 18");
    for (int i = 0; i < a->from.ndim - 2; i++) {
        factor = factor || a->params.factor[i] != 0;
        factors[2 + i] = a->params.factor[i] != 0 ? (float)a->params.factor[i] : 1;
    }
    if (factor) {
        ek_scope scope = ek_scope_begin();
        scales = ek_onnx_constant(g, ek_onnx_text(g, "scales_%d", g->text_count),
                                  ek_from_data(factors, EK_SHAPE(a->from.ndim), EK_F32));
        ek_scope_end(&scope);
    } else {
        sizes = ek_onnx_shape(g, r->outputs[0]);
    }
    return NODE(TYPE, IN(X, "", scales, sizes), TEXT("mode", modes[kind]),
                TEXT("coordinate_transformation_mode", a->params.align_corners ? "align_corners"
                                                       : nearest               ? "asymmetric"
                                                                               : "half_pixel"),
                TEXT("nearest_mode", nearest ? "floor" : "round_prefer_ceil"),
                FLOAT("cubic_coeff_a", antialias ? -0.5 : -0.75),
                antialias ? INT("antialias", 1) : (ek_onnx_attribute){0});
}

/* ---- the table ---- */

#define EACH(name, write, type)                                             \
    {name "1d", write, type, 0, false}, {name "2d", write, type, 0, false}, \
    {                                                                       \
        name "3d", write, type, 0, false                                    \
    }
const ek_onnx_row ek_onnx_spatial[] = {EACH("conv", spatial_conv, "Conv"),
                                       EACH("conv_transpose", spatial_conv, "ConvTranspose"),
                                       EACH("max_pool", spatial_max_pool, "MaxPool"),
                                       EACH("avg_pool", spatial_avg_pool, "AveragePool"),
                                       EACH("adaptive_avg_pool", spatial_adaptive_pool,
                                            "AveragePool"),
                                       {"interpolate", spatial_interpolate, "Resize", 0, false},
                                       {0}};
