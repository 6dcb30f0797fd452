/* stage_modules.c: nn.h and module.h: every constructor, and a call of what it made. */
#include "rows.h"

/* Calls the module, which may be NULL, and frees it. */
static ek_tensor *call(ek_module *module, ek_tensor *x)
{
    ek_tensor *y = NULL;
    if (module && ek_module_to_device(module, ek_host(0)) >= 0)
        y = ek_apply(module, x);
    if (y && fault_note_parameters(module) < 0)
        y = NULL;
    ek_module_free(module);
    return y;
}

/* The output, and the last state of h, of a recurrent network for two samples, (2, 2, 2), of which
 * the second has one step. */
static ek_tensor *recurrent(ek_module *module, ek_tensor *x)
{
    static const int64_t steps[] = {2, 1};
    ek_tensor *lengths = ek_from_data(steps, EK_SHAPE(2), EK_I64), *y = NULL;
    if (module && lengths && ek_module_to_device(module, ek_host(0)) >= 0) {
        ek_value result = ek_forward(module, x, ek_value_none(), lengths),
                 state = ek_value_at(result, 1);
        ek_tensor *h = ek_value_tensor(state.kind == EK_VALUE_LIST ? ek_value_at(state, 0) : state);
        y = ek_add(ek_sum(ek_value_tensor(ek_value_at(result, 0))), ek_sum(h));
    }
    if (y && fault_note_parameters(module) < 0)
        y = NULL;
    ek_module_free(module);
    return y;
}

/* The new h of a cell. */
static ek_tensor *cell(ek_module *module, ek_tensor *x)
{
    ek_tensor *y = NULL;
    if (module && ek_module_to_device(module, ek_host(0)) >= 0) {
        ek_value state = ek_forward(module, x);
        y = ek_value_tensor(state.kind == EK_VALUE_LIST ? ek_value_at(state, 0) : state);
    }
    ek_module_free(module);
    return y;
}

static ek_tensor *loss(ek_module *criterion, ek_tensor *x, ek_tensor *target)
{
    ek_tensor *y = criterion ? ek_loss(criterion, x, target) : NULL;
    ek_module_free(criterion);
    return y;
}

/* Like `loss`, of three inputs. */
static ek_tensor *loss3(ek_module *criterion, ek_tensor *const *x)
{
    ek_tensor *y = criterion ? ek_loss(criterion, x[0], x[1], x[2]) : NULL;
    ek_module_free(criterion);
    return y;
}

/* Two samples of one class each. */
static ek_tensor *sequences(ek_tensor *x, ek_tensor *targets)
{
    ek_tensor *frames = ek_full(4, EK_SHAPE(2), EK_I64), *ones = ek_ones(EK_SHAPE(2), EK_I64);
    ek_module *criterion = ek_ctc_loss(.blank = 3, .batch_first = true);
    ek_tensor *y = criterion ? ek_loss(criterion, x, targets, frames, ones) : NULL;
    ek_module_free(criterion);
    return y;
}

/* A weight per class. */
static ek_tensor *weighted(ek_tensor *x, ek_tensor *target)
{
    ek_tensor *weight = ek_full(0.5, EK_SHAPE(3), .device = ek_host(0));
    return loss(ek_cross_entropy_loss(.weight = weight, .ignore_index = 1), x, target);
}

/* ---- a module of one's own, and what module.h does with it ---- */

typedef struct scaled {
    ek_module module;
    ek_tensor *scale, *offset;
    ek_module *body;
} scaled;

static ek_value scaled_forward(ek_module *module, const ek_args *args)
{
    scaled *self = (scaled *)module;
    ek_tensor *y = ek_apply(self->body, ek_value_tensor(ek_arg(args, 0)));
    return ek_value_of_tensor(ek_add(ek_mul(y, self->scale), self->offset));
}

/* The count goes with the replicas of a forward. */
static int scaled_replicated(ek_module *replica, ek_replication *replication)
{
    return replication->count > 0 ? 0 : -1;
}

static const ek_module_type scaled_type = {.name = "scaled",
                                           .size = sizeof(scaled),
                                           .forward = scaled_forward,
                                           .replicated = scaled_replicated};

static ek_module *scaled_new(void)
{
    ek_module *module = ek_module_new(&scaled_type);
    scaled *self = (scaled *)module;
    if (!module)
        return NULL;
    ek_register_parameter(module, "scale", &self->scale, ek_ones(EK_SHAPE(3)));
    ek_register_buffer(module, "offset", &self->offset, ek_zeros(EK_SHAPE(3)));
    ek_register_module(module, "body", &self->body, ek_linear(2, 3));
    return ek_module_finish(module);
}

static int count_visited(const char *path, ek_tensor *tensor, void *user)
{
    *(int64_t *)user += ek_tensor_count(tensor);
    return 0;
}

static ek_tensor *own(ek_tensor *x)
{
    ek_module *module = scaled_new();
    int64_t buffers = 0, count = module ? ek_module_numel(module) : -1;
    ek_tensor *y = NULL;
    if (count >= 0 && ek_module_child(module, 0) && ek_module_tensor(module, "body.weight") &&
        ek_module_buffers(module, count_visited, &buffers) >= 0 &&
        ek_module_to_device(module, ek_host(0)) >= 0 && ek_module_to_dtype(module, EK_F64) >= 0) {
        fault_note_bytes(ek_module_path(ek_module_child(module, 0)), 4);
        fault_note_bytes(ek_current_module_path(), 1);
        ek_module_train(module, false);
        ek_module_set_requires_grad(module, false);
        ek_module_zero_grad(module); /* what these three could not do is pending */
        fault_note((double)(buffers + count));
        y = ek_error_status() < 0 ? NULL : ek_apply(module, ek_to_dtype(x, EK_F64));
    }
    ek_module_free(module);
    return y;
}

static int to_tanh(const char *path, ek_module *module, void *net)
{
    return ek_module_is(module, "relu") ? ek_module_set(net, path, ek_tanh()) : 0;
}

/* A wrapper takes its child's place, activations are replaced in a walk, and weights are tied. */
static ek_tensor *replaced(ek_tensor *x)
{
    ek_module *net = ek_sequential(ek_linear(2, 2), ek_relu(), ek_linear(2, 2));
    if (net && ek_module_set(net, "0", ek_weight_norm(ek_module_at(net, "0"))) >= 0 &&
        ek_module_apply(net, to_tanh, net) >= 0 && ek_module_set_tensor(net, "0.bias", NULL) >= 0 &&
        ek_module_set_tensor(net, "2.weight", ek_module_tensor(net, "0.weight_v")) >= 0)
        return call(net, x);
    ek_module_free(net);
    return NULL;
}

static ek_tensor *patched(ek_tensor *x)
{
    ek_module *module = ek_data_parallel(scaled_new(), .device_ids = fault_devices());
    ek_tensor *y = NULL;
    int64_t sizes[FAULT_DEVICES];
    ek_data_parallel_stats stats;
    char plan[200];
    if (module && ek_patch_replication_callback(module) >= 0 && ek_shard_unit(module) >= 0 &&
        ek_module_checkpoint(module, false) >= 0 && ek_data_parallel_module(module) &&
        ek_data_parallel_sizes(module, 7, sizes) >= 0)
        y = ek_apply(module, x);
    if (y && (ek_data_parallel_get_stats(module, &stats) < 0 ||
              ek_data_parallel_plan(module, plan, sizeof plan) < 0))
        y = NULL;
    for (int i = 0; i < FAULT_DEVICES && y; i++)
        if (ek_synchronize(ek_host(i)) < 0)
            y = NULL;
    ek_module_free(module);
    return y;
}

/* Replicas in the caller's hands. */
static ek_tensor *replicas(ek_tensor *x)
{
    ek_device_list devices = fault_devices();
    ek_module *module = scaled_new(), *each[FAULT_DEVICES] = {NULL};
    ek_tensor *chunks[FAULT_DEVICES] = {NULL}, *y = NULL;
    ek_value inputs[FAULT_DEVICES], outputs[FAULT_DEVICES];
    ek_args args[FAULT_DEVICES];
    int count = module && ek_module_to_device(module, ek_host(0)) >= 0 &&
                        ek_replicate(module, &devices, each) >= 0
                    ? ek_scatter(x, &devices, NULL, 0, chunks)
                    : -1;
    for (int i = 0; i < count; i++) {
        inputs[i] = EK_VALUE(chunks[i]);
        args[i] = (ek_args){&inputs[i], 1, ek_value_none()};
    }
    if (count > 0 && ek_parallel_apply(each, args, count, &devices, outputs) >= 0)
        y = ek_value_tensor(ek_gather_value(outputs, count, ek_host(0), 0));
    for (int i = 0; i < FAULT_DEVICES; i++)
        ek_module_free(each[i]);
    ek_module_free(module);
    return y;
}

static ek_tensor *initialised(void)
{
    ek_tensor *x = ek_empty(EK_SHAPE(4, 3));
    if (!x || ek_init_uniform(x, 0, 1) < 0 || ek_init_normal(x, 0, 1) < 0 ||
        ek_init_constant(x, 1) < 0 || ek_init_kaiming_uniform(x, 1) < 0 ||
        ek_init_kaiming_normal(x, 1) < 0 || ek_init_xavier_uniform(x, 1) < 0)
        return NULL;
    return ek_to_device(x, ek_host(0));
}

#define MODULES(X)                                                                                 \
    X(sequential, "f3x2", call(ek_sequential(ek_linear(2, 3), ek_relu(), ek_linear(3, 1)), x[0]))  \
    X(sequential_named, "f3x2",                                                                    \
      call(ek_sequential_named({"a", ek_linear(2, 3)}, {NULL, ek_relu()}), x[0]))                  \
    X(linear, "f3x2", call(ek_linear(2, 3, false), x[0]))                                          \
    X(conv1d, "f1x2x4", call(ek_conv1d(2, 2, 3), x[0]))                                            \
    X(conv2d, "f1x2x4x4", call(ek_conv2d(2, 2, 3, .padding = 1), x[0]))                            \
    X(conv3d, "f1x1x2x2x2", call(ek_conv3d(1, 1, 2), x[0]))                                        \
    X(conv_transpose1d, "f1x2x3", call(ek_conv_transpose1d(2, 1, 3), x[0]))                        \
    X(conv_transpose2d, "f1x2x2x2", call(ek_conv_transpose2d(2, 1, 3, .stride = 2), x[0]))         \
    X(conv_transpose3d, "f1x1x2x2x2", call(ek_conv_transpose3d(1, 1, 2), x[0]))                    \
    X(batch_norm1d, "f4x2", call(ek_batch_norm1d(2), x[0]))                                        \
    X(batch_norm2d, "f3x2x2x2", call(ek_batch_norm2d(2, .momentum = EK_CUMULATIVE), x[0]))         \
    X(batch_norm3d, "f2x2x1x2x2", call(ek_batch_norm3d(2, .affine = false), x[0]))                 \
    X(instance_norm1d, "f2x2x3", call(ek_instance_norm1d(2), x[0]))                                \
    X(instance_norm2d, "f2x2x2x2", call(ek_instance_norm2d(2, .affine = true), x[0]))              \
    X(instance_norm3d, "f1x2x1x2x2", call(ek_instance_norm3d(2), x[0]))                            \
    X(layer_norm, "f2x3", call(ek_layer_norm(EK_SHAPE(3)), x[0]))                                  \
    X(group_norm, "f2x4x2", call(ek_group_norm(2, 4), x[0]))                                       \
    X(sync_batch_norm, "f4x2", call(ek_sync_batch_norm(2), x[0]))                                  \
    X(activations, "f4x2", call(ek_sequential(ek_leaky_relu(0.1), ek_sigmoid(), ek_tanh()), x[0])) \
    X(smooth_activations, "f4x2",                                                                  \
      call(ek_sequential(ek_gelu(EK_GELU_NONE), ek_silu(), ek_mish(), ek_elu(1), ek_celu(1),       \
                         ek_selu(), ek_softsign(), ek_log_sigmoid(), ek_tanhshrink(),              \
                         ek_softplus(.beta = 2)),                                                  \
           x[0]))                                                                                  \
    X(hard_activations, "f4x2",                                                                    \
      call(ek_sequential(ek_relu6(), ek_hardtanh(-1, 1), ek_hardsigmoid(), ek_hardswish(),         \
                         ek_hardshrink(0.5), ek_softshrink(0.5), ek_threshold(0.1, 1),             \
                         ek_prelu()),                                                              \
           x[0]))                                                                                  \
    X(activations_along_a_dimension, "f4x2",                                                       \
      call(ek_sequential(ek_softmax(1), ek_log_softmax(1), ek_softmin(1), ek_glu(1)), x[0]))       \
    X(dropout, "f4x2", call(ek_sequential(ek_dropout(0.5), ek_identity()), x[0]))                  \
    X(dropout2d, "f2x2x2x2", call(ek_dropout2d(0.5), x[0]))                                        \
    X(flatten, "f2x2x2", call(ek_flatten(1, -1), x[0]))                                            \
    X(max_pool1d, "f1x2x4", call(ek_max_pool1d(2), x[0]))                                          \
    X(max_pool2d, "f1x2x4x4", call(ek_max_pool2d(2), x[0]))                                        \
    X(max_pool3d, "f1x1x2x2x2", call(ek_max_pool3d(2), x[0]))                                      \
    X(avg_pool1d, "f1x2x4", call(ek_avg_pool1d(2), x[0]))                                          \
    X(avg_pool2d, "f1x2x4x4", call(ek_avg_pool2d(2), x[0]))                                        \
    X(avg_pool3d, "f1x1x2x2x2", call(ek_avg_pool3d(2), x[0]))                                      \
    X(adaptive_avg_pool1d, "f1x2x5", call(ek_adaptive_avg_pool1d(2), x[0]))                        \
    X(adaptive_avg_pool2d, "f1x2x3x3", call(ek_adaptive_avg_pool2d(2, 2), x[0]))                   \
    X(adaptive_avg_pool3d, "f1x1x3x2x2", call(ek_adaptive_avg_pool3d(2, 1, 1), x[0]))              \
    X(upsample, "f1x1x2x2", call(ek_upsample(4, .mode = EK_BILINEAR), x[0]))                       \
    X(upsample_factor, "f1x1x2", call(ek_upsample(.scale_factor = 2, .mode = EK_LINEAR), x[0]))    \
    X(checkpoint, "f3x2", call(ek_checkpoint(ek_sequential(ek_linear(2, 3), ek_tanh())), x[0]))    \
    X(cross_entropy_loss, "f4x3 i4", weighted(x[0], x[1]))                                         \
    X(token_cross_entropy_loss, "f2x2x3 i2x2",                                                     \
      loss(ek_token_cross_entropy_loss(.label_smoothing = 0.1), x[0], x[1]))                       \
    X(nll_loss, "f4x3 i4", loss(ek_nll_loss(), ek_f_log_softmax(x[0], 1), x[1]))                   \
    X(mse_loss, "f4x3 f4x3", loss(ek_mse_loss(EK_SUM), x[0], x[1]))                                \
    X(l1_loss, "f4x3 f4x3", loss(ek_l1_loss(), x[0], x[1]))                                        \
    X(smooth_l1_loss, "f4x3 f4x3", loss(ek_smooth_l1_loss(), x[0], x[1]))                          \
    X(huber_loss, "f4x3 f4x3", loss(ek_huber_loss(.delta = 0.5), x[0], x[1]))                      \
    X(bce_loss, "f4 p4", loss(ek_bce_loss(), ek_f_sigmoid(x[0]), x[1]))                            \
    X(soft_margin_loss, "f4 c4", loss(ek_soft_margin_loss(), x[0], x[1]))                          \
    X(multilabel_soft_margin_loss, "f2x3 c2x3",                                                    \
      loss(ek_multilabel_soft_margin_loss(), x[0], x[1]))                                          \
    X(kl_div_loss, "f4x3 p4x3", loss(ek_kl_div_loss(EK_BATCH_MEAN), x[0], x[1]))                   \
    X(poisson_nll_loss, "f4 p4", loss(ek_poisson_nll_loss(), x[0], x[1]))                          \
    X(gaussian_nll_loss, "f4 f4 p4", loss3(ek_gaussian_nll_loss(), x))                             \
    X(margin_ranking_loss, "f4 f4 c4", loss3(ek_margin_ranking_loss(), x))                         \
    X(hinge_embedding_loss, "f4 c4", loss(ek_hinge_embedding_loss(), x[0], x[1]))                  \
    X(cosine_embedding_loss, "f4x3 f4x3 c4", loss3(ek_cosine_embedding_loss(), x))                 \
    X(triplet_margin_loss, "f4x3 f4x3 f4x3", loss3(ek_triplet_margin_loss(.margin = 9), x))        \
    X(multi_margin_loss, "f4x3 i4", loss(ek_multi_margin_loss(), x[0], x[1]))                      \
    X(multilabel_margin_loss, "f4x3 i4x3", loss(ek_multilabel_margin_loss(), x[0], x[1]))          \
    X(ctc_loss, "f2x4x4 i2x1", sequences(x[0], x[1]))                                              \
    X(rrelu, "f4x3", call(ek_rrelu(), x[0]))                                                       \
    X(bce_with_logits_loss, "f4 p4", loss(ek_bce_with_logits_loss(), x[0], x[1]))                  \
    X(convert, "f4x2",                                                                             \
      call(ek_convert_sync_batch_norm(ek_sequential(ek_batch_norm1d(2), ek_relu())), x[0]))        \
    X(own, "c3x2", own(x[0]))                                                                      \
    X(replaced, "c3x2", replaced(x[0]))                                                            \
    X(patched, "c5x2", patched(x[0]))                                                              \
    X(replicas, "c5x2", replicas(x[0]))                                                            \
    X(rnn, "f2x2x2", recurrent(ek_rnn(2, 2, .bidirectional = true), x[0]))                         \
    X(lstm, "f2x2x2", recurrent(ek_lstm(2, 2, .num_layers = 2, .dropout = 0.5), x[0]))             \
    X(gru, "f2x2x2", recurrent(ek_gru(2, 2, .batch_first = true), x[0]))                           \
    X(rnn_cell, "f2x2", cell(ek_rnn_cell(2, 2), x[0]))                                             \
    X(lstm_cell, "f2x2", cell(ek_lstm_cell(2, 2), x[0]))                                           \
    X(gru_cell, "f2x2", cell(ek_gru_cell(2, 2), x[0]))                                             \
    X(pad_sequence, "f3x2 f1x2", ek_pad_sequence(x, 2, true, 1))                                   \
    X(init, "", initialised())

ROWS_STAGE(modules, MODULES);
