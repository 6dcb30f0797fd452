/* build.c: see build.h. */
#include "build.h"

#include <string.h>

#include "modules.h"

const way one_device = {.wrapper = WRAPPER_NONE, .count = 1, .on = {0, 1, 2, 3}};

ek_dtype program_dtype(const program *p)
{
    return p->dtype == DTYPE_F64 ? EK_F64 : EK_F32;
}

bool trainer_is_plain(const trainer *t)
{
    return t->w->wrapper == WRAPPER_NONE;
}

/* ---- the net ---- */

/* Constants at corners (a bias of 0 behind a normalisation) would decide masks by rounding. */
static int shake(const char *path, ek_tensor *tensor, void *user)
{
    ek_scope scope = ek_scope_begin();
    bool before = ek_set_grad_enabled(false);
    ek_tensor *noise = ek_randn(ek_tensor_shape(tensor), ek_tensor_dtype(tensor));
    int rc = ek_add_scaled_(tensor, noise, 0.1) ? 0 : ek_error_status();
    ek_set_grad_enabled(before);
    ek_scope_end(&scope);
    return rc;
}

static ek_module *make_net(const trainer *t)
{
    const program *p = t->p;
    ek_module *layers[MAX_LAYERS + 3];
    for (int i = 0; i < t->net.count; i++)
        layers[i] = make_layer(&t->net.layers[i]);
    ek_module *net = ek_sequential_of(layers, t->net.count);
    if (net && (p->input != INPUT_ONE || p->output != OUTPUT_ONE))
        net = nest_new(net, p->output);
    ek_module *synchronised = p->plain_norm ? net : ek_convert_sync_batch_norm(net);
    if (!synchronised)
        ek_module_free(net);
    net = synchronised;
    if (net && (ek_module_to_dtype(net, program_dtype(p)) < 0 ||
                ek_module_parameters(net, shake, NULL) < 0)) {
        ek_module_free(net);
        return NULL;
    }
    return net;
}

static ek_module *make_criterion(const program *p)
{
    static const ek_reduction reductions[] = {EK_MEAN, EK_SUM, EK_NONE};
    double weights[5] = {1, 0.5, 2, 0.25, 3};
    const ek_reduction reduction = reductions[p->reduction];
    const double smoothing = p->smoothing ? 0.1 : 0;
    ek_tensor *weight = NULL;
    if (p->weighted)
        weight = ek_to_dtype(ek_from_data(weights, EK_SHAPE(p->classes), .dtype = EK_F64),
                             program_dtype(p));
    switch (p->task) {
        CASE_IS(TASK_CROSS_ENTROPY, ek_cross_entropy_loss(.reduction = reduction, .weight = weight,
                                                          .label_smoothing = smoothing));
        CASE_IS(TASK_NLL, ek_nll_loss(.reduction = reduction, .weight = weight));
        CASE_IS(TASK_MSE, ek_mse_loss(.reduction = reduction));
        CASE_IS(TASK_L1, ek_l1_loss(.reduction = reduction));
        CASE_IS(TASK_BCE, ek_bce_with_logits_loss(.reduction = reduction));
        CASE_IS(TASK_WEIGHTED, weighted_criterion_new());
        CASE_IS(TASK_SAMPLES, samples_criterion_new());
    default:
        return ek_gan_loss((ek_gan_loss_kind)p->critic, EK_GAN_CRITIC_REAL);
    }
}

static ek_module *make_whole_criterion(const program *p)
{
    ek_module *criterion = make_criterion(p);
    return p->output == OUTPUT_ONE ? criterion : nest_criterion_new(criterion);
}

/* ---- the optimizer: a large eps, or rounding of a zero gradient would become a step ---- */

typedef struct parameter_list {
    ek_tensor *tensors[200];
    int count;
} parameter_list;

static int add_parameter(const char *path, ek_tensor *tensor, void *user)
{
    parameter_list *list = user;
    if (list->count < 200)
        list->tensors[list->count++] = tensor;
    return 0;
}

static ek_optimizer *make_optimizer(const program *p, ek_module *model)
{
    const bool maximize = p->maximize;
    switch (p->optimizer) {
    case OPTIMIZER_NESTEROV:
        return ek_sgd(model, .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-2,
                      .maximize = maximize);
    case OPTIMIZER_DAMPENED:
        return ek_sgd(model, .lr = 0.05, .momentum = 0.5, .dampening = 0.1, .maximize = maximize);
    case OPTIMIZER_ADAM:
        return ek_adam(model, .lr = 0.01, .eps = 1e-2, .weight_decay = 1e-2, .maximize = maximize);
    case OPTIMIZER_AMSGRAD:
        return ek_adam(model, .lr = 0.01, .eps = 1e-2, .amsgrad = true, .beta1 = 0.8,
                       .maximize = maximize);
    case OPTIMIZER_ADAMW:
        return ek_adamw(model, .lr = 0.01, .eps = 1e-2, .maximize = maximize);
    default:
        return ek_sgd(model, .lr = 0.05, .maximize = maximize);
    }
}

/* Every second parameter in a group with another rate. */
static int add_groups(ek_optimizer *optimizer, ek_module *model)
{
    parameter_list all = {.count = 0}, halves[2] = {{.count = 0}, {.count = 0}};
    int rc = ek_module_parameters(model, add_parameter, &all);
    for (int i = 0; i < all.count; i++)
        halves[i % 2].tensors[halves[i % 2].count++] = all.tensors[i];
    for (int i = 0; i < 2 && rc >= 0; i++)
        rc = ek_optimizer_add_group(optimizer, halves[i].tensors, halves[i].count);
    if (rc >= 0)
        rc = ek_optimizer_set(optimizer, 1, "lr", 0.02);
    return rc < 0 ? rc : 0;
}

static int open_optimizer(trainer *t)
{
    const program *p = t->p;
    t->optimizer = make_optimizer(p, p->groups > 1 ? NULL : t->model);
    if (!t->optimizer)
        return ek_error_status();
    if (p->groups > 1 && add_groups(t->optimizer, t->model) < 0)
        return ek_error_status();
    if (p->schedule == SCHEDULE_STEP)
        t->schedule = ek_step_lr(t->optimizer, 2, 0.5);
    else if (p->schedule == SCHEDULE_COSINE)
        t->schedule = ek_cosine_annealing_lr(t->optimizer, 6, 1e-3);
    return p->schedule != SCHEDULE_NONE && !t->schedule ? ek_error_status() : 0;
}

/* ---- the wrapper ---- */

static void write_plan(const way *w, char text[100])
{
    char *at = text;
    for (int i = 0; i < w->count; i++)
        at += sprintf(at, "%s%d", i ? "," : "", w->shares[i]);
}

static void give_plan(const way *w, ek_data_parallel_options *o, char plan[100])
{
    for (int i = 0; i < w->count; i++) {
        if (w->plan == PLAN_CHUNKS)
            o->chunks[i] = w->shares[i];
        if (w->plan == PLAN_WEIGHTS)
            o->weights[i] = w->shares[i];
    }
    if (w->plan == PLAN_FIRST)
        o->first_device_batch = w->shares[0];
    if (w->plan == PLAN_TEXT) {
        write_plan(w, plan);
        o->plan = plan;
    }
}

static ek_data_parallel_options wrapper_options(const way *w, ek_module *net, char plan[100])
{
    static const ek_split_policy splits[] = {EK_SPLIT_CHUNK, EK_SPLIT_EVEN, EK_SPLIT_AUTO};
    ek_data_parallel_options o =
        EK_OPTIONS(ek_data_parallel_options, .module = net, .split = splits[w->split],
                   .goal = (ek_plan_goal)w->goal, .shard = (ek_shard_policy)w->shard,
                   .offload = (ek_offload_policy)w->offload,
                   .running_stats = (ek_running_stats)w->stats, .broadcast_buffers = !w->own,
                   .plain = w->wrapper == WRAPPER_ALONE);
    o.device_ids.count = w->count;
    for (int i = 0; i < w->count; i++)
        o.device_ids.devices[i] = ek_host(w->on[i]);
    give_plan(w, &o, plan);
    if (w->gather == GATHER_LAST)
        o.output_device = o.device_ids.devices[w->count - 1];
    o.output_on_cpu = w->gather == GATHER_CPU;
    return o;
}

static ek_module *wrap_criterion(const way *w, ek_module *criterion, ek_device_list devices)
{
    return ek_data_parallel_criterion(criterion, .device_ids = devices,
                                      .reduction = w->mean_of_means ? EK_MEAN_OF_MEANS : EK_EXACT);
}

static int wrap(trainer *t, ek_module *net)
{
    char plan[100];
    const way *w = t->w;
    ek_data_parallel_options o = wrapper_options(w, net, plan);
    if (w->wrapper == WRAPPER_CLASSIC) {
        t->model = ek_data_parallel_with(o);
        t->home = o.output_on_cpu            ? ek_cpu()
                  : w->gather == GATHER_LAST ? o.output_device
                                             : o.device_ids.devices[0];
        if (!t->model || ek_module_to_device(t->criterion, t->home) < 0)
            return ek_error_status();
        return t->on_fake ? ek_module_to_device(t->on_fake, t->home) : 0;
    }
    t->model = ek_data_parallel_model_with(o);
    t->criterion = wrap_criterion(w, t->criterion, o.device_ids);
    if (t->on_fake)
        t->on_fake = wrap_criterion(w, t->on_fake, o.device_ids);
    return ek_error_status();
}

static int stay_plain(trainer *t, ek_module *net)
{
    t->model = net;
    if (ek_module_to_device(net, t->home) < 0 || ek_module_to_device(t->criterion, t->home) < 0)
        return ek_error_status();
    return t->on_fake ? ek_module_to_device(t->on_fake, t->home) : 0;
}

static int open_all(trainer *t)
{
    const program *p = t->p;
    ek_manual_seed((uint64_t)p->seed);
    ek_module *net = make_net(t);
    t->criterion = net ? make_whole_criterion(p) : NULL;
    if (t->criterion && p->task == TASK_CRITIC)
        t->on_fake = ek_gan_loss((ek_gan_loss_kind)p->critic, EK_GAN_CRITIC_FAKE);
    if (!net || !t->criterion || (p->task == TASK_CRITIC && !t->on_fake)) {
        ek_module_free(net);
        return ek_error_status();
    }
    int rc = trainer_is_plain(t) ? stay_plain(t, net) : wrap(t, net);
    if (rc >= 0 && t->w->patched)
        rc = ek_patch_replication_callback(t->model);
    return rc < 0 ? rc : open_optimizer(t);
}

int trainer_open(trainer *t, const program *p, const way *w)
{
    memset(t, 0, sizeof *t);
    t->p = p;
    t->w = w;
    t->home = ek_host(w->on[0]);
    place_layers(p, &t->net);
    wrong_set_device(ek_host(w->count > 1 ? w->on[1] : -1));
    ek_scope scope = ek_scope_begin();
    int rc = open_all(t);
    ek_scope_end(&scope);
    if (rc < 0)
        trainer_close(t, 0);
    return rc;
}

/* ---- the end ---- */

static void free_part(trainer *t, int part)
{
    switch (part) {
    case 0:
        ek_report_free(t->report);
        break;
    case 1:
        ek_schedule_free(t->schedule);
        break;
    case 2:
        ek_optimizer_free(t->optimizer);
        break;
    case 3:
        ek_module_free(t->model);
        break;
    case 4:
        ek_module_free(t->criterion);
        break;
    case 5:
        ek_module_free(t->on_fake);
        break;
    default:
        ek_value_release(t->held);
    }
}

void trainer_close(trainer *t, int order)
{
    enum { PARTS = 7 };
    static const int strides[] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < PARTS; i++)
        free_part(t, (order + i * strides[order / PARTS % 6]) % PARTS);
    t->report = NULL;
    t->schedule = NULL;
    t->optimizer = NULL;
    t->model = t->criterion = t->on_fake = NULL;
    t->held = ek_value_none();
}
