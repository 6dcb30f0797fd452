// A C++ program: every macro of the headers that takes keyword arguments, lists or values, and a
// module and a data set of the user's.
#include <evenkeel/evenkeel.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

static void check(bool well, const char *what)
{
    if (!well) {
        std::fprintf(stderr, "%s\n", what);
        ek_print_error(stderr);
        std::exit(1);
    }
}
#define CHECK(x) check((x), #x)

static double number(ek_tensor *tensor)
{
    double value = NAN;
    CHECK(ek_item(ek_sum(tensor), &value) == 0);
    return value;
}

// A module of the user's.
struct scaled {
    ek_module module;
    ek_tensor *scale;
    ek_module *body;
};

static ek_value scaled_forward(ek_module *module, const ek_args *args)
{
    scaled *self = reinterpret_cast<scaled *>(module);
    return EK_VALUE(ek_mul(ek_apply(self->body, ek_arg_tensor(args, 0)), self->scale));
}

static ek_module *scaled_new(ek_module *body)
{
    static const ek_module_type type = [] {
        ek_module_type made = {};
        made.name = "scaled";
        made.size = sizeof(scaled);
        made.forward = scaled_forward;
        return made;
    }();
    scaled *self = reinterpret_cast<scaled *>(ek_module_new(&type));
    if (self) {
        ek_register_parameter(&self->module, "scale", &self->scale, ek_ones(EK_SHAPE(1)));
        ek_register_module(&self->module, "body", &self->body, body);
    }
    return ek_module_finish(reinterpret_cast<ek_module *>(self));
}

static void options()
{
    const int64_t n = 4;
    CHECK(ek_tensor_count(ek_zeros(EK_SHAPE(2, n))) == 8);
    CHECK(ek_tensor_dtype(ek_ones(EK_SHAPE(3), .dtype = EK_F64, .device = ek_host(1))) == EK_F64);
    CHECK(ek_tensor_dtype(ek_ones(EK_SHAPE(3), EK_F64, .requires_grad = true)) == EK_F64);
    CHECK(number(ek_full(0.5, EK_SHAPE(n, 2))) == 4);
    const float data[] = {1, 2, 3, 4};
    ek_tensor *x = ek_from_data(data, EK_SHAPE(1, 1, 2, 2), .requires_grad = true);
    CHECK(number(x) == 10);
    CHECK(ek_tensor_count(ek_sum(x, EK_DIMS(2, 3))) == 1);
    ek_tensor *w = ek_ones(EK_SHAPE(1, 1, 1, 1));
    CHECK(number(ek_f_conv2d(x, w, NULL, .stride = 2)) == 1);
    CHECK(number(ek_f_conv2d(x, w)) == 10);
    CHECK(number(ek_f_conv2d(x, w, .padding = 1)) == 10);
    CHECK(number(ek_f_max_pool2d(x, 2)) == 4);
    CHECK(number(ek_f_interpolate(x, 1)) == 1);
    CHECK(number(ek_f_interpolate(x, .scale_factor = 0.5, .mode = EK_AREA)) == 2.5);
    CHECK(number(ek_f_grid_sample(x, ek_zeros(EK_SHAPE(1, 1, 1, 2)))) == 2.5);
    CHECK(ek_upsample(.scale_factor = 2, .mode = EK_BILINEAR) != nullptr);
    CHECK(number(ek_f_max_pool2d(x, .kernel = 1, .stride = 2)) == 1);
    CHECK(number(ek_norm(x, .p = 0)) == double(ek_tensor_count(x)));
    CHECK(number(ek_f_normalize(x)) == 4 && number(ek_f_normalize(x, .dim = -1, .p = 1)) > 1.99);
    CHECK(number(ek_f_cosine_similarity(x, x, .dim = 0)) > 3.99);
    CHECK(number(ek_f_pairwise_distance(x, x, .eps = 0)) == 0);
    CHECK(ek_cosine_similarity(.eps = 1e-6) && ek_pairwise_distance(.keepdim = true, .p = 1));
    CHECK(std::isfinite(number(ek_nan_to_num(ek_f_softplus(x, .beta = 2), .nan = 1))));
    CHECK(number(ek_any(x)) + number(ek_all(x, EK_DIMS(0), .keepdim = true)) > 0);
    CHECK(number(ek_amax(x)) >= number(ek_amin(x)) &&
          std::isfinite(number(ek_prod(x)) + number(ek_nansum(x))));
    ek_tensor *mean;
    CHECK(number(ek_var_mean(&mean, x, .correction = 1)) >= 0 && mean != nullptr);
    ek_module *activations =
        ek_sequential(ek_softplus(.beta = 2), ek_softplus(), ek_prelu(), ek_prelu(1, .init = 0.1),
                      ek_rrelu(), ek_rrelu(.lower = 0.1, .upper = 0.2));
    CHECK(activations != nullptr && ek_apply(activations, x) != nullptr);
    ek_module_free(activations);
    ek_tensor *a = ek_ones(EK_SHAPE(2, 3)), *b = ek_zeros(EK_SHAPE(2, 3)),
              *half = ek_full(0.5, EK_SHAPE(1));
    CHECK(number(ek_f_smooth_l1_loss(a, b, .beta = 2)) == 0.25);
    CHECK(number(ek_f_huber_loss(a, b, .reduction = EK_SUM, .delta = 1)) == 3);
    CHECK(number(ek_f_bce(a, a)) == 0 &&
          number(ek_f_kl_div(b, a, .reduction = EK_BATCH_MEAN)) == 0);
    CHECK(number(ek_f_token_cross_entropy(b, ek_zeros(EK_SHAPE(2), EK_I64), .ignore_index = 1)) >
          1);
    CHECK(number(ek_f_poisson_nll_loss(b, b, .log_input = true)) == 1);
    CHECK(number(ek_f_gaussian_nll_loss(a, b, a, .full = false)) == 0.5);
    CHECK(number(ek_f_margin_ranking_loss(a, b, a, .margin = 2)) == 1);
    CHECK(number(ek_f_hinge_embedding_loss(a, a, .margin = 1)) == 1);
    CHECK(number(ek_f_triplet_margin_loss(a, a, a, .margin = 1, .swap = true)) == 1);
    CHECK(number(ek_median(a)) == 1 && number(ek_quantile(a, half, EK_DIMS(1))) == 2);
    CHECK(number(ek_nanquantile(a, half, .keepdim = true)) == 1);
    ek_module *criteria[] = {ek_huber_loss(.delta = 2), ek_kl_div_loss(.reduction = EK_BATCH_MEAN),
                             ek_triplet_margin_loss(.margin = 1, .p = 1, .swap = true),
                             ek_ctc_loss(.blank = 1, .zero_infinity = true),
                             ek_token_cross_entropy_loss(.ignore_index = 1,
                                                         .label_smoothing = 0.1)};
    for (ek_module *criterion : criteria) {
        CHECK(criterion != nullptr);
        ek_module_free(criterion);
    }
    ek_tensor *heads = ek_ones(EK_SHAPE(1, 2, 3, 4));
    CHECK(number(ek_f_scaled_dot_product_attention(heads, heads, heads, .is_causal = true)) == 24);
    ek_module *encoder = ek_transformer_encoder(ek_transformer_encoder_layer(4, 2, .dropout = 0), 2,
                                                .norm = ek_rms_norm(EK_SHAPE(4)));
    ek_module *words = ek_embedding(5, 4, .padding_idx = 0);
    CHECK(ek_tensor_count(ek_apply(encoder, ek_apply(words, ek_zeros(EK_SHAPE(3, 1), EK_I64)))) ==
          12);
    ek_module_free(encoder);
    ek_module_free(words);
    ek_tensor *columns = ek_f_unfold(x, 2, .padding = 1), *index = NULL;
    ek_tensor *largest = ek_sort(x, -1, true, &index);
    CHECK(number(columns) == 40 && number(largest) == 10 && number(index) == 2);
    CHECK(number(ek_f_fold(columns, 2, .padding = 1, .height = 2, .width = 2)) == 40);
    CHECK(ek_tensor_dtype(ek_eq(x, x)) == EK_BOOL);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 8, .growth_interval = 3);
    CHECK(number(ek_grad_scaler_scale(scaler, ek_ones(EK_SHAPE(1), EK_F16))) == 8);
    ek_grad_scaler_free(scaler);
    ek_module *lstm = ek_lstm(2, 3, .num_layers = 2, .batch_first = true),
              *cell = ek_gru_cell(2, 3, .bias = false);
    ek_tensor *sequences[] = {ek_ones(EK_SHAPE(2, 2)), ek_ones(EK_SHAPE(1, 2))};
    ek_value recurrent = ek_forward(lstm, ek_pad_sequence(sequences, 2, true, 0));
    CHECK(ek_tensor_count(ek_value_tensor(ek_value_at(recurrent, 0))) == 12);
    CHECK(ek_tensor_count(ek_apply(cell, sequences[0])) == 6);
    ek_module_free(lstm);
    ek_module_free(cell);
    CHECK(ek_backward(ek_sum(x)) == 0);
    ek_tensor *gradient = NULL;
    ek_tensor *outputs[] = {ek_sum(ek_mul(x, x))};
    CHECK(ek_grad(.outputs = outputs, .output_count = 1, .inputs = &x, .input_count = 1,
                  .gradients = &gradient) == 0);
    CHECK(number(gradient) == 20);
    ek_module *same = ek_conv2d(1, 2, 3, .padding = 1, .bias = false);
    ek_module *flat = ek_conv2d(1, 2, 0, .kernels = {1, 3});
    ek_module *named = ek_conv2d(.in_channels = 1, .out_channels = 2, .kernel = 3);
    CHECK(ek_tensor_count(ek_apply(same, x)) == 8 && flat && named);
    ek_module_free(same);
    ek_module_free(flat);
    ek_module_free(named);
    ek_module *mirrored = ek_conv2d(1, 2, 1, .padding = EK_SAME), *square = ek_linear(2, 2);
    ek_module *critic = ek_spectral_norm(mirrored, .eps = 1e-10);
    ek_module *plain = ek_weight_norm(square, "weight", .dim = 1);
    CHECK(ek_tensor_count(ek_apply(critic, x)) == 8 && plain);
    CHECK(ek_module_tensor(critic, "weight_u") && ek_module_tensor(plain, "weight_g"));
    ek_module_free(critic);
    ek_module_free(plain);
    ek_module *margin = ek_constant_pad2d(1, 2), *powers = ek_lp_pool2d(2, 2, .stride = 1);
    ek_module *local = ek_local_response_norm(3, .k = 2);
    ek_module *pooled = ek_sequential(margin, powers, local, ek_adaptive_max_pool2d(1, 1, false));
    CHECK(ek_tensor_count(ek_apply(pooled, x)) == 1);
    ek_module_free(pooled);
    ek_tensor *pair = ek_ones(EK_SHAPE(2, 3)), *at = nullptr;
    ek_module *form = ek_bilinear(3, 3, 4, .bias = false), *unpool = ek_max_unpool2d(2);
    CHECK(ek_tensor_count(ek_value_tensor(ek_forward(form, pair, pair))) == 8);
    ek_tensor *maxima = ek_f_max_pool2d(x, 2, .indices = &at);
    CHECK(ek_tensor_count(ek_value_tensor(ek_forward(unpool, maxima, at))) == 4);
    CHECK(ek_f_max_unpool2d(maxima, at, 2, .sizes = {2, 2}) && ek_f_lp_pool2d(x, 2, 2));
    ek_module_free(form);
    ek_module_free(unpool);
    ek_module *weights = ek_parameter_dict(ek_named_parameter{"left", ek_ones(EK_SHAPE(2))});
    CHECK(ek_module_numel(weights) == 2);
    ek_module_free(weights);
    ek_module *chain = ek_sequential_named(ek_named_module{"conv", ek_conv2d(1, 2, 3)},
                                           ek_named_module{"relu", ek_relu()});
    CHECK(ek_module_tensor(chain, "conv.bias"));
    ek_module_free(chain);
    ek_module *features = ek_resnet18(.classes = 0, .channels = 1);
    CHECK(features && ek_module_numel(features) == 11170240);
    ek_module_free(features);
    ek_module *text = ek_gpt2(256, .context = 8, .width = 4, .layers = 1, .heads = 2);
    CHECK(text && ek_tensor_count(ek_apply(text, ek_zeros(EK_SHAPE(1, 3), EK_I64))) == 768);
    ek_module_free(text);
    const bool with = false;
    ek_module *plain_layers[] = {ek_linear(4, 2, .bias = with),
                                 ek_instance_norm2d(8, .affine = !with),
                                 ek_conv2d(1, 2, .kernel_size = 3),
                                 ek_sequential_named({"relu", ek_relu()}),
                                 ek_module_dict({"left", ek_relu()}, {"right", ek_tanh()})};
    CHECK(!ek_module_tensor(plain_layers[0], "bias") && ek_module_tensor(plain_layers[1], "bias"));
    ek_error_clear();
    for (ek_module *layer : plain_layers) {
        CHECK(layer != nullptr);
        ek_module_free(layer);
    }
    const ek_adam_options filled = EK_DEFAULTS(ek_adam_options);
    CHECK(filled.lr == 1e-3 && filled.beta1 == 0.9 && filled.weight_decay == 0 && !filled.amsgrad);
    const ek_adam_options given = EK_OPTIONS(ek_adam_options, .lr = 0, .beta2 = 0.5);
    CHECK(given.lr == 0 && given.beta1 == 0.9 && given.beta2 == 0.5);
    CHECK(ek_tensor_count(ek_sum(x, .dim = 0, .keepdim = true)) == 4);
    CHECK(EK_CHECK_ABI() == 0 && ek_abi() == EK_ABI);
    ek_module *refused = ek_conv2d(1, 2, 3, .stride = 0); // a written zero is a zero
    CHECK(!refused && ek_error_status() == EK_E_INVALID);
    ek_error_clear();
}

static void values()
{
    ek_tensor *a = ek_ones(EK_SHAPE(2)), *b = ek_zeros(EK_SHAPE(3));
    ek_value list = EK_LIST(a, b, EK_LIST(a));
    CHECK(ek_value_length(list) == 3 && ek_value_length(ek_value_at(list, 2)) == 1);
    CHECK(EK_SCATTERED(a, b).per_device);
    CHECK(ek_value_batch_dim(ek_value_batched(EK_VALUE(a), -1), 1) == 0);
    CHECK(EK_DEVICES(ek_host(1), ek_host(0)).count == 2);
}

static void data()
{
    ek_tensor *x = ek_randn(EK_SHAPE(6, 1, 4, 4)), *y = ek_randint(0, 3, EK_SHAPE(6));
    ek_dataset *pictures =
        ek_transformed(ek_tensor_dataset(x, y), 0, ek_random_crop(4, .padding = 1),
                       ek_random_horizontal_flip(0.5), ek_random_rotation(10, true, .fill = 1),
                       ek_random_affine(0, .shear = 5, .translate = {0.1, 0.1}),
                       ek_random_perspective(0.2, 0.5, .nearest = true),
                       ek_random_erasing(0.3, .value = 1, .scale = {0.1, 0.2}),
                       ek_color_jitter(0.2, 0.2, .hue_range = {-0.1, 0.1}),
                       ek_random_apply(0.5, ek_gaussian_blur(3, 3, .sigma = {0.5, 1}),
                                       ek_random_adjust_sharpness(2, 0.5)),
                       ek_random_choice(ek_random_invert(0.5), ek_random_autocontrast(0.5)),
                       ek_random_order(ek_random_grayscale(0.5), ek_random_solarize(0.5, 0.5)),
                       ek_pad_picture(1, EK_BORDER_EDGE, .left = 1),
                       ek_random_resized_crop(4, 4, .scale = {0.5, 1}));
    ek_loader *loader = ek_data_loader(pictures, .shuffle = true, .batch_size = 4);
    CHECK(loader);
    ek_batch batch;
    int rc, samples = 0;
    while ((rc = ek_loader_next(loader, &batch)) > 0)
        samples += static_cast<int>(batch.count);
    CHECK(rc == 0 && samples == 6);
    ek_loader_free(loader);

    ek_transform *policies[] = {ek_auto_augment(EK_POLICY_CIFAR10),
                                ek_rand_augment(2, 9),
                                ek_trivial_augment_wide(31, .bilinear = true),
                                ek_random_posterize(4, 0.5),
                                ek_random_equalize(0.5),
                                ek_grayscale(3)};
    CHECK(ek_transform_apply(policies, 6, ek_zeros(EK_SHAPE(3, 8, 8), EK_U8), nullptr));
    for (ek_transform *policy : policies)
        ek_transform_free(policy);

    ek_iterator *iterator = ek_iterate(ek_shuffled(ek_tensor_dataset(x, y), 4, .seed = 2), 0);
    CHECK(iterator && ek_iterator_skip(iterator, 7) == 6);
    ek_iterator_free(iterator);
    CHECK(!ek_token_stream("/nowhere", 0, .type = "u16"));
    ek_error_clear();

    ek_dataset *pairs = ek_transformed_alike(ek_tensor_dataset(x, ek_zeros(EK_SHAPE(6, 1, 4, 4))),
                                             EK_FIELD(0, ek_random_horizontal_flip(0.5)),
                                             EK_FIELD(1, ek_random_horizontal_flip(0.5)));
    CHECK(pairs && ek_dataset_length(pairs) == 6);
    CHECK(ek_value_length(ek_dataset_get(pairs, 0)) == 2);
    ek_dataset_free(pairs);
}

/* Other optimizers, schedules, averages and tools of modules. */
static double halves(int64_t step, int, void *)
{
    return step % 2 ? 0.5 : 1;
}

static int cubes(ek_tensor *const *inputs, ek_tensor **outputs, void *)
{
    outputs[0] = ek_sum(ek_pow_scalar(inputs[0], 3));
    return 0;
}

static ek_tensor *doubled(ek_tensor *gradient, void *)
{
    return ek_mul_scalar(gradient, 2);
}

static ek_value count_calls(ek_module *, const ek_args *, ek_value, void *user)
{
    ++*static_cast<int *>(user);
    return ek_value_none();
}

static void looking()
{
    ek_tensor *x = ek_ones(EK_SHAPE(2)), *g = nullptr;
    int calls = 0;
    CHECK(ek_vjp(.function = cubes, .inputs = &x, .input_count = 1, .results = &g) == 0);
    CHECK(number(g) == 6);
    CHECK(ek_jvp(.function = cubes, .inputs = &x, .input_count = 1, .v = &x, .results = &g) == 0);
    CHECK(number(g) == 6);
    CHECK(ek_jacobian(.function = cubes, .inputs = &x, .input_count = 1, .results = &g) == 0);
    CHECK(ek_hessian(.function = cubes, .inputs = &x, .input_count = 1, .results = &g) == 0);
    CHECK(number(g) == 12);
    CHECK(ek_tensor_set_requires_grad(x, true) == 0 &&
          ek_tensor_register_hook(x, doubled, NULL) > 0);
    CHECK(ek_backward(ek_sum(x)) == 0 && number(ek_tensor_grad(x)) == 4);
    ek_module *net = ek_linear(2, 2);
    CHECK(ek_module_register_forward_hook(net, count_calls, &calls) > 0);
    CHECK(ek_apply(net, x) && calls == 1);
    ek_module_free(net);
}

static void carrying()
{
    ek_module *net = ek_module_list(ek_linear(2, 3), ek_batch_norm1d(3));
    CHECK(ek_module_list_append(net, ek_alpha_dropout(0.1)) == 0);
    ek_tensor *weight = ek_module_tensor(net, "0.weight");
    CHECK(ek_init_kaiming_normal(weight, .mode = EK_FAN_OUT, .nonlinearity = EK_GAIN_RELU) == 0);
    ek_optimizer *optimizer = ek_rmsprop(net, .momentum = 0.9, .alpha = 0.5, .centered = true);
    double momentum = 0;
    CHECK(ek_optimizer_set(optimizer, 0, "momentum", 0.5) == 0);
    CHECK(ek_optimizer_get(optimizer, 0, "momentum", &momentum) == 0 && momentum == 0.5);
    ek_schedule *schedule = ek_chained_lr(ek_multi_step_lr(optimizer, 0.5, 1, 3),
                                          ek_multiplicative_lr(optimizer, halves, NULL));
    CHECK(schedule && ek_schedule_step(schedule) == 0);
    CHECK(ek_optimizer_lr(optimizer, 0) == 0.0025);
    ek_schedule_free(schedule);
    schedule = ek_one_cycle_lr(optimizer, 0.1, 10, .pct_start = 0.5);
    CHECK(schedule);
    ek_schedule_free(schedule);
    schedule = ek_cyclic_lr(optimizer, 0.1, 0.2, .mode = EK_CYCLIC_EXP_RANGE, .gamma = 0.5);
    CHECK(schedule);
    ek_schedule_free(schedule);
    schedule = ek_reduce_lr_on_plateau(optimizer, .patience = 0);
    CHECK(ek_schedule_step_measure(schedule, 1) == 0 && ek_schedule_step_measure(schedule, 1) == 0);
    CHECK(ek_optimizer_lr(optimizer, 0) < 0.02);
    ek_schedule_free(schedule);
    ek_ema *ema = ek_ema_new(net, .decay = 0.5);
    CHECK(ek_ema_update(ema) == 0 && ek_ema_updates(ema) == 1);
    ek_module *copy = ek_module_copy(net);
    CHECK(ek_ema_copy_to(ema, copy) == 0 && ek_module_print(copy, stdout) == 0);
    double norm = 1;
    CHECK(ek_clip_grad_norm(.max_norm = 1, .norm = &norm, .norm_type = 1, .module = net) == 0);
    CHECK(norm == 0);
    ek_module_free(copy);
    ek_ema_free(ema);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

static uint64_t in_use()
{
    ek_memory_stats stats;
    CHECK(ek_memory_get_stats(ek_cpu(), &stats) == 0);
    return stats.in_use;
}

static ek_tensor *returned()
{
    EK_SCOPE(scope);
    return ek_scope_return(&scope, ek_neg(ek_ones(EK_SHAPE(2))));
}

// Scopes end by break, by return and by an exception.
static void scopes()
{
    const uint64_t before = in_use();
    for (int i = 0; i < 2; i++) {
        EK_SCOPE(outer);
        CHECK(number(returned()) == -2);
        if (i == 0)
            break;
    }
    try {
        EK_SCOPE(scope);
        CHECK(ek_ones(EK_SHAPE(2)));
        throw 1;
    } catch (int) {
    }
    ek_release(ek_keep(nullptr));
    ek_release(NULL);
    ek_module_free(0);
    CHECK(in_use() == before);
}

static void training()
{
    ek_manual_seed(1);
    ek_module *net = ek_sequential(ek_linear(8, 16), ek_relu(), scaled_new(ek_linear(16, 3)));
    ek_module *model = ek_data_parallel_model(net, .shard = EK_SHARD_OPTIMIZER);
    ek_module *loss = ek_data_parallel_criterion(ek_cross_entropy_loss());
    ek_optimizer *optimizer = ek_adam(model, .lr = 0.01, .beta1 = 0);
    CHECK(model && loss && optimizer);
    double first = 0, last = 0;
    for (int i = 0; i < 40; i++) {
        EK_SCOPE(step);
        ek_tensor *x = ek_randn(EK_SHAPE(32, 8));
        ek_tensor *target = ek_argmax(ek_narrow(x, 1, 0, 3), 1, false);
        if (i % 2) {
            CHECK(ek_train_step(&last, .model = model, .criterion = loss, .optimizer = optimizer,
                                .input = EK_VALUE(x), .target = EK_VALUE(target),
                                .micro_batches = 2) == 0);
        } else {
            ek_tensor *l = ek_loss(loss, ek_forward(model, x), target);
            CHECK(ek_minimize(optimizer, l, .value = i ? &last : &first) == 0);
        }
    }
    CHECK(last < 0.8 * first);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_module_free(loss);
}

// A closure without captures is a function; what it needs comes as its user.
static void fitting()
{
    struct fit {
        ek_module *net;
        ek_optimizer *optimizer;
        ek_tensor *x, *y;
    };
    ek_module *net = ek_linear(3, 1);
    ek_tensor *x = ek_randn(EK_SHAPE(9, 3));
    fit f = {net, ek_lbfgs(net, .max_iter = 4, .line_search = EK_STRONG_WOLFE), x,
             ek_sum(x, EK_DIMS(1), .keepdim = true)};
    double loss = 1;
    for (int i = 0; i < 5; i++)
        CHECK(ek_step_closure(
                  f.optimizer,
                  [](double *value, void *user) {
                      fit *with = static_cast<fit *>(user);
                      ek_zero_grad(with->optimizer);
                      ek_tensor *l = ek_f_mse_loss(ek_apply(with->net, with->x), with->y);
                      return ek_backward(l) < 0 ? ek_error_status() : ek_item(l, value);
                  },
                  &f, &loss) == 0);
    CHECK(loss < 1e-6);
    ek_optimizer_free(f.optimizer);
    ek_module_free(net);
}

// A world of one rank, in which every call is allowed.
static void ranks()
{
    CHECK(ek_dist_init_process_group(.timeout = 60) == 0);
    ek_process_group *group = ek_dist_new_group(EK_RANKS(0), .timeout = 30);
    CHECK(group && ek_dist_get_world_size(group) == 1 && ek_dist_new_group());
    ek_tensor *x = ek_ones(EK_SHAPE(3)), *y = ek_zeros(EK_SHAPE(3));
    ek_dist_work *work = nullptr;
    CHECK(ek_dist_all_reduce(x) == 0 && ek_dist_all_reduce(x, .op = EK_DIST_MAX) == 0);
    CHECK(ek_dist_broadcast(x, 0) == 0 && ek_dist_reduce(x, 0, .group = group) == 0);
    CHECK(ek_dist_broadcast(.tensor = x, .work = &work) == 0 && ek_dist_wait(work) == 0);
    CHECK(ek_dist_barrier() == 0 && ek_dist_barrier(.group = group) == 0);
    CHECK(ek_dist_all_gather(x, &y) == 0 && number(y) == 3);
    CHECK(ek_dist_gather(x, &y, 0) == 0 && ek_dist_scatter(y, &x, 0) == 0);
    CHECK(ek_dist_reduce_scatter(y, &x, .op = EK_DIST_AVG) == 0);
    CHECK(ek_dist_all_to_all(.list = &y, .inputs = &x) == 0);
    CHECK(ek_dist_send(x, 0) < 0 && ek_dist_recv(x, EK_DIST_ANY, .tag = 1) < 0);
    CHECK(ek_dist_send(x, 0, .tag = 1, .work = &work) < 0 && !work);
    ek_error_clear();
    ek_module *model = ek_distributed_data_parallel(ek_linear(3, 1), .bucket_cap_mb = 1,
                                                    .shard = EK_SHARD_OPTIMIZER);
    CHECK(ek_backward(ek_sum(ek_apply(model, x))) == 0);
    ek_module_free(model);
    CHECK(ek_dist_destroy_process_group(nullptr) == 0);
}

int main()
{
    ek_scope scope = ek_scope_begin();
    options();
    values();
    data();
    ranks();
    ek_scope_end(&scope);
    scopes();
    training();
    fitting();
    looking();
    carrying();
    CHECK(ek_shutdown() == 0);
    return 0;
}
