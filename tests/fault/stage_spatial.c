/* stage_spatial.c: pooling with positions, unpooling, padding and pairs, as functions and as
 * modules; weights that are computed; what takes scalars for rows. */
#include "rows.h"

/* Frees the module. */
static ek_tensor *call(ek_module *module, ek_tensor *x)
{
    ek_tensor *y = NULL;
    if (module && ek_module_to_device(module, ek_host(0)) >= 0)
        y = ek_apply(module, x);
    ek_module_free(module);
    return y;
}

/* Of two inputs. */
static ek_tensor *call_pair(ek_module *module, ek_tensor *x, ek_tensor *y)
{
    ek_tensor *z = NULL;
    if (module && ek_module_to_device(module, ek_host(0)) >= 0)
        z = ek_value_tensor(ek_forward(module, x, y));
    ek_module_free(module);
    return z;
}

/* Maxima that are spread out again. */
static ek_tensor *unpooled(ek_module *pool, ek_module *unpool, ek_tensor *x)
{
    ek_tensor *y = NULL;
    if (pool && unpool) {
        ek_value both = ek_forward(pool, x);
        if (both.kind == EK_VALUE_LIST)
            y = ek_value_tensor(ek_forward(unpool, ek_value_at(both, 0), ek_value_at(both, 1)));
    }
    ek_module_free(pool);
    ek_module_free(unpool);
    return y;
}

static ek_tensor *positions(ek_tensor *x)
{
    ek_tensor *index = NULL, *y = ek_f_max_pool2d(x, 2, .indices = &index);
    return y ? ek_f_max_unpool2d(y, index, 2) : NULL;
}

static ek_tensor *parameters(ek_tensor *x)
{
    ek_tensor *a = ek_ones(EK_SHAPE(2)), *b = ek_ones(EK_SHAPE(3)), *c = ek_ones(EK_SHAPE(1));
    ek_module *list = a && b && c ? ek_parameter_list(a, b) : NULL, *dict = NULL;
    int status = list ? ek_parameter_list_append(list, c) : ek_error_status();
    if (status >= 0) {
        fault_note((double)ek_module_numel(list));
        dict = ek_parameter_dict({"left", a}, {"right", b});
    }
    ek_tensor *y = dict ? ek_mul_scalar(x, (double)ek_module_numel(dict)) : NULL;
    ek_module_free(dict);
    ek_module_free(list);
    return y;
}

static ek_tensor *scalar_rows(ek_tensor *x)
{
    ek_tensor *index = NULL, *y = ek_sort(x, 0, false, &index);
    y = y ? ek_scatter_dim(ek_f_softmax(y, 0), 0, index, ek_cumsum(y, 0)) : NULL;
    y = y ? ek_add(ek_index_add(y, 0, index, y, 1), ek_gather_dim(y, -1, index)) : NULL;
    return y ? ek_max_dim(ek_index_select(y, 0, index), 0, false) : NULL;
}

/* ---- hooks, and derivatives of functions ---- */

static ek_tensor *hook_twice(ek_tensor *gradient, void *user)
{
    return ek_mul_scalar(gradient, 2);
}

static ek_tensor *hooked(ek_tensor *x)
{
    ek_tensor *y = ek_square(x);
    int64_t first = y ? ek_tensor_register_hook(y, hook_twice, NULL) : ek_error_status();
    int64_t second = first > 0 ? ek_tensor_register_hook(y, hook_twice, NULL) : first;
    return second > 0 && ek_tensor_remove_hook(y, first) == 0 ? ek_mul(y, x) : NULL;
}

static ek_value hook_before(ek_module *module, const ek_args *args, void *user)
{
    return EK_LIST(ek_mul_scalar(ek_arg_tensor(args, 0), 2));
}

static ek_value hook_after(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    return ek_value_of_tensor(ek_add_scalar(ek_value_tensor(output), 1));
}

static ek_value hook_backward(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    return EK_LIST(ek_mul_scalar(ek_value_tensor(ek_value_at(grad_inputs, 0)), 3));
}

static ek_tensor *hooked_module(ek_tensor *x)
{
    ek_module *module = ek_sequential(ek_linear(3, 2), ek_tanh());
    ek_module *child = module ? ek_module_child(module, 0) : NULL;
    int64_t id = child ? ek_module_register_forward_pre_hook(child, hook_before, NULL) : -1;
    if (id > 0)
        id = ek_module_register_forward_hook(child, hook_after, NULL);
    if (id > 0 && ek_module_register_full_backward_hook(child, hook_backward, NULL) > 0 &&
        ek_module_remove_hook(child, id) == 0)
        return call(module, x);
    ek_module_free(module);
    return NULL;
}

static int functional_body(ek_tensor *const *x, ek_tensor **y, void *user)
{
    y[0] = ek_sum(ek_pow_scalar(x[0], 3));
    return 0;
}

static ek_tensor *functional(ek_tensor *x)
{
    ek_tensor *of[4] = {NULL}, *v = ek_ones_like(x);
    if (!v ||
        ek_vjp(.function = functional_body, .inputs = &x, .input_count = 1, .results = &of[0],
               .create_graph = true) < 0 ||
        ek_jvp(.function = functional_body, .inputs = &x, .input_count = 1, .v = &v,
               .results = &of[1], .create_graph = true) < 0 ||
        ek_jacobian(.function = functional_body, .inputs = &x, .input_count = 1, .results = &of[2],
                    .create_graph = true) < 0 ||
        ek_hessian(.function = functional_body, .inputs = &x, .input_count = 1, .results = &of[3],
                   .create_graph = true) < 0)
        return NULL;
    return ek_add(ek_matmul(of[3], ek_add(of[0], of[2])), of[1]);
}

#define SPATIAL(X)                                                                            \
    X(conv2d_same, "f1x2x4x4 f2x2x2x3 f2", ek_f_conv2d(x[0], x[1], x[2], .padding = EK_SAME)) \
    X(conv1d_single, "f2x4 f2x2x3", ek_f_conv1d(x[0], x[1], .padding = 1))                    \
    X(avg_pool2d_single, "f2x4x4", ek_f_avg_pool2d(x[0], 2))                                  \
    X(adaptive_max_pool1d, "f1x2x5", ek_f_adaptive_max_pool1d(x[0], 2, NULL))                 \
    X(adaptive_max_pool2d, "f2x5x4", ek_f_adaptive_max_pool2d(x[0], 2, 2, NULL))              \
    X(adaptive_max_pool3d, "f1x1x2x3x2", ek_f_adaptive_max_pool3d(x[0], 1, 2, 1, NULL))       \
    X(max_unpool1d, "f1x2x3 i1x2x3", ek_f_max_unpool1d(x[0], x[1], 2))                        \
    X(max_unpool2d, "f1x2x4x4", positions(x[0]))                                              \
    X(max_unpool3d, "f1x1x1x1x2 i1x1x1x1x2", ek_f_max_unpool3d(x[0], x[1], 2))                \
    X(lp_pool1d, "p1x2x4", ek_f_lp_pool1d(x[0], 2, 2))                                        \
    X(lp_pool2d, "p1x2x4x4", ek_f_lp_pool2d(x[0], 3, 2, .stride = 1))                         \
    X(lp_pool3d, "p1x1x2x2x2", ek_f_lp_pool3d(x[0], 2, 2))                                    \
    X(local_response_norm, "f1x3x2", ek_f_local_response_norm(x[0], 2, 0.1, 0.75, 1))         \
    X(bilinear, "f2x3 f2x2 f2x3x2 f2", ek_f_bilinear(x[0], x[1], x[2], x[3]))                 \
    X(scalar_rows, "f0", scalar_rows(x[0]))                                                   \
    X(hooked, "f2x3", hooked(x[0]))                                                           \
    X(hooked_module, "f2x3", hooked_module(x[0]))                                             \
    X(functional, "f2", functional(x[0]))

ROWS_STAGE(spatial, SPATIAL);

#define SPATIAL_MODULES(X)                                                                     \
    X(spectral_norm, "f2x3", call(ek_spectral_norm(ek_linear(3, 2)), x[0]))                    \
    X(weight_norm, "f2x3", call(ek_weight_norm(ek_linear(3, 2)), x[0]))                        \
    X(conv2d_reflect, "f1x2x4x4",                                                              \
      call(ek_conv2d(2, 1, 3, .padding = EK_SAME, .padding_mode = EK_PAD_REFLECT), x[0]))      \
    X(instance_norm, "f2x2x3", call(ek_instance_norm1d(2, .track_running_stats = true), x[0])) \
    X(unpool1d, "f1x2x4",                                                                      \
      unpooled(ek_max_pool1d(2, .return_indices = true), ek_max_unpool1d(2), x[0]))            \
    X(unpool2d, "f1x2x4x4",                                                                    \
      unpooled(ek_max_pool2d(2, .return_indices = true), ek_max_unpool2d(2), x[0]))            \
    X(unpool3d, "f1x1x2x2x2",                                                                  \
      unpooled(ek_adaptive_max_pool3d(1, 1, 1, true), ek_max_unpool3d(2), x[0]))               \
    X(adaptive_max1d, "f1x2x5", call(ek_adaptive_max_pool1d(2, false), x[0]))                  \
    X(adaptive_max2d, "f1x2x5x4", call(ek_adaptive_max_pool2d(2, 2, false), x[0]))             \
    X(lp1d, "p1x2x4", call(ek_lp_pool1d(2, 2), x[0]))                                          \
    X(lp2d, "p1x2x4x4", call(ek_lp_pool2d(2, 2), x[0]))                                        \
    X(lp3d, "p1x1x2x2x2", call(ek_lp_pool3d(2, 2), x[0]))                                      \
    X(pads1d, "f1x2x4",                                                                        \
      call(ek_sequential(ek_zero_pad1d(1), ek_constant_pad1d(1, 2), ek_reflection_pad1d(1),    \
                         ek_replication_pad1d(1), ek_circular_pad1d(1)),                       \
           x[0]))                                                                              \
    X(pads2d, "f1x1x2x2",                                                                      \
      call(ek_sequential(ek_zero_pad2d(1), ek_constant_pad2d(1, 2), ek_reflection_pad2d(1),    \
                         ek_replication_pad2d(1), ek_circular_pad2d(1)),                       \
           x[0]))                                                                              \
    X(pads3d, "f1x1x2x1x1",                                                                    \
      call(ek_sequential(ek_zero_pad3d(1), ek_constant_pad3d(1, 2), ek_reflection_pad3d(1),    \
                         ek_replication_pad3d(.paddings = {0, 1}),                             \
                         ek_circular_pad3d(.paddings = {1, 0})),                               \
           x[0]))                                                                              \
    X(shuffles, "f1x4x2x2",                                                                    \
      call(ek_sequential(ek_channel_shuffle(2), ek_pixel_shuffle(2), ek_pixel_unshuffle(2),    \
                         ek_local_response_norm(2)),                                           \
           x[0]))                                                                              \
    X(bilinear_module, "f2x3 f2x2", call_pair(ek_bilinear(3, 2, 2), x[0], x[1]))               \
    X(cosine, "f2x3 f2x3", call_pair(ek_cosine_similarity(.dim = -1), x[0], x[1]))             \
    X(distance, "f2x3 f2x3", call_pair(ek_pairwise_distance(.p = 1), x[0], x[1]))              \
    X(parameters, "f2", parameters(x[0]))

ROWS_STAGE(spatial_modules, SPATIAL_MODULES);
