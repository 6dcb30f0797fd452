/* same.c: see same.h. */
#include "kit/same.h"

#include "autograd/shards.h"
#include "kit/exact.h"
#include "kit/segmentation.h"
#include "nn/module_table.h"

ALGORITHM_LIST(OPTIMIZER_MAKER)
static const optimizer_row algorithms[] = {ALGORITHM_LIST(OPTIMIZER_ROW)};
_Static_assert(sizeof algorithms / sizeof *algorithms == ALGORITHMS, "the enum counts the rows");

/* ---- modules ---- */

static ek_value two_terms_forward(ek_module *module, const ek_args *args)
{
    const two_terms *self = (two_terms *)module;
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_apply(self->main, x), *z;
    if (self->fails)
        return fail_with("out of luck");
    if (self->alone)
        return ek_value_of_tensor(y);
    z = ek_apply(self->side,
                 ek_to_device(x, ek_tensor_device(ek_module_tensor(self->side, "weight"))));
    return ek_value_of_tensor(ek_add(y, ek_to_device(z, ek_tensor_device(y))));
}

MODULE_TYPE(two_terms, two_terms)

static ek_module *terms_new(const same_setting *setting)
{
    int inputs = setting->inputs ? setting->inputs : IN;
    int hidden = setting->hidden ? setting->hidden : 40;
    two_terms *self = (two_terms *)ek_module_new(&two_terms_type);
    ek_register_module(&self->module, "main", &self->main,
                       ek_sequential(ek_linear(inputs, hidden), ek_tanh(), ek_linear(hidden, OUT)));
    ek_register_module(&self->module, "side", &self->side, ek_linear(inputs, OUT));
    return ek_tensor_set_requires_grad(ek_module_tensor(&self->module, "side.bias"), false) < 0
               ? NULL
               : &self->module;
}

/* Makes a net on cpu, with the same parameters each time. NULL with an error. */
ek_module *same_net_new(const same_setting *setting)
{
    ek_module *net;
    if (setting->net == PICTURES)
        return make_net(true, setting->dtype);
    if (setting->net == TERMS)
        net = terms_new(setting);
    else if (setting->net == TIED)
        net = exact_tied_new(IN, OUT);
    else
        net = ek_sequential(ek_conv2d(1, 5, 4, .stride = 2, .padding = 1), ek_leaky_relu(0.2),
                            ek_conv2d(5, 3, 4, .stride = 2), ek_tanh(), ek_flatten(1, -1),
                            ek_linear(27, 1));
    return exact_fill(net) >= 0 && ek_module_to_dtype(net, setting->dtype) >= 0 ? net : NULL;
}

static int tensor_list_add(const char *path, ek_tensor *tensor, void *user)
{
    tensor_list *list = user;
    (void)path;
    list->tensors[list->count++] = tensor;
    return 0;
}

tensor_list parameters_of(ek_module *module)
{
    tensor_list list = {0};
    ek_module_parameters(module, tensor_list_add, &list);
    return list;
}

tensor_list same_parameters(const same_pair *pair, int way)
{
    return parameters_of(pair->nets[way]);
}

/* ---- a pair of models, with an optimizer each ---- */

ek_device_list same_devices(const same_pair *pair)
{
    ek_device_list list = {.count = pair->setting.spans ? 2 : pair->setting.devices};
    for (int k = 0; k < list.count; k++)
        list.devices[k] = test_device((pair->group ? pair->group->rank : 0) * list.count + k);
    return list;
}

static ek_module *same_criterion_new(const same_setting *setting)
{
    return setting->net == PICTURES ? make_criterion(EK_MEAN) : ek_mse_loss(.reduction = EK_SUM);
}

int same_wrap(same_pair *pair, int way)
{
    const same_setting *s = &pair->setting;
    ek_shard_policy shard = way == SHARDED ? s->policy : EK_SHARD_NONE;
    ek_offload_policy offload = way == SHARDED ? s->offload : EK_OFFLOAD_NONE;
    ek_device_list devices = same_devices(pair);
    ek_module *net = pair->nets[way];
    if (!pair->had_wrapper[way]) /* the wrapper takes over this reference; later wrappers add one */
        ek_module_retain(net);
    pair->had_wrapper[way] = true;
    if (s->spans) /* the module stays where it is */
        devices.count = 0;
    ek_module_free(pair->criteria[way]);
    pair->criteria[way] = same_criterion_new(s);
    if (pair->group) {
        pair->models[way] =
            ek_distributed_data_parallel(net, .device_ids = devices, .process_group = pair->group,
                                         .bucket_cap_mb = s->cap > 0 ? s->cap : 25,
                                         .bf16_gradients = s->narrow, .shard = shard,
                                         .offload = offload);
    } else if (s->balanced) {
        pair->models[way] = ek_data_parallel_model(net, .device_ids = devices, .shard = shard,
                                                   .offload = offload, .plan = s->plan);
        pair->criteria[way] =
            ek_data_parallel_criterion(pair->criteria[way], .device_ids = devices);
    } else {
        pair->models[way] = ek_data_parallel(net, .device_ids = devices, .shard = shard,
                                             .offload = offload, .plan = s->plan);
    }
    return pair->models[way] && pair->criteria[way] ? 0 : ek_error_status();
}

void same_unwrap(same_pair *pair, int way)
{
    ek_module_free(pair->models[way]);
    ek_module_free(pair->criteria[way]);
    pair->models[way] = NULL;
    pair->criteria[way] = same_criterion_new(&pair->setting);
}

ek_optimizer *same_optimizer_new(const same_pair *pair, int way)
{
    const optimizer_row *row = &algorithms[pair->setting.algorithm];
    if (!pair->setting.groups)
        return row->make(pair->nets[way]);
    tensor_list list = same_parameters(pair, way);
    ek_optimizer *optimizer = row->make(NULL);
    if (!optimizer || ek_optimizer_add_group(optimizer, list.tensors, 1) < 0)
        return NULL;
    const double lr = ek_optimizer_lr(optimizer, 0);
    return add_group_with(optimizer, list.tensors + 1, list.count - 1, "lr", 0.5 * lr) < 0
               ? NULL
               : optimizer;
}

const char *same_make(same_pair *pair, ek_process_group *group, const same_setting *setting)
{
    *pair = (same_pair){.setting = *setting, .group = group};
    if (!pair->setting.batch)
        pair->setting.batch = 3;
    ek_device_list devices = same_devices(pair);
    for (int way = 0; way < WAYS; way++) {
        ek_module *net = pair->nets[way] = same_net_new(setting);
        LOOP_CHECK(net);
        RANKS_OK(ek_module_to_device(net, devices.count ? devices.devices[0] : ek_cpu()));
        if (setting->spans)
            RANKS_OK(ek_module_to_device(((two_terms *)net)->side, devices.devices[1]));
        RANKS_OK(same_wrap(pair, way));
        pair->optimizers[way] = same_optimizer_new(pair, way);
        LOOP_CHECK(pair->optimizers[way]);
    }
    return NULL;
}

void same_free(same_pair *pair)
{
    for (int way = 0; way < WAYS; way++) {
        ek_module_free(pair->models[way]);
        ek_module_free(pair->criteria[way]);
        ek_optimizer_free(pair->optimizers[way]);
        ek_module_free(pair->nets[way]);
    }
}

/* ---- losses ---- */

ek_tensor *same_rows(int64_t rows, int64_t columns, ek_dtype dtype, int64_t from)
{
    double values[4096];
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = sin((double)(i + from * columns) * 1.7) * 0.7;
    ek_tensor *x = ek_from_data(values, EK_SHAPE(rows, columns), EK_F64, .device = ek_cpu());
    return ek_to_dtype(x, dtype);
}

static void same_batch(const same_setting *s, ek_dtype dtype, int64_t rows, int64_t from,
                       ek_tensor **x, ek_tensor **target)
{
    if (s->net == PICTURES) {
        ek_tensor *images, *kept;
        make_batch(rows, 0, UNEVENLY_IGNORED, dtype, 100 + (uint64_t)from, &images, &kept);
        *x = ek_clone(images);
        *target = ek_clone(kept);
        ek_release(images);
        ek_release(kept);
    } else {
        *x = same_rows(rows, s->inputs ? s->inputs : IN, dtype, from);
        *target = same_rows(rows, OUT, dtype, from + 50);
    }
}

/* Returns the critic's loss: a penalty of kind R1 in f64, else of kind WGAN-GP. */
static ek_tensor *same_penalty(const same_pair *pair, int way, ek_dtype dtype, int64_t from)
{
    ek_shape shape = EK_SHAPE(pair->setting.batch, 1, PIXELS, PIXELS);
    ek_manual_seed(50 + (uint64_t)from);
    ek_tensor *real = ek_randn(shape, .dtype = dtype), *fake = ek_randn(shape, .dtype = dtype);
    return ek_gradient_penalty(pair->models[way], real, fake,
                               .kind = dtype == EK_F64 ? EK_PENALTY_R1 : EK_PENALTY_WGAN_GP);
}

ek_tensor *same_loss(const same_pair *pair, int way, int64_t rows, int64_t from)
{
    ek_module *model = pair->models[way] ? pair->models[way] : pair->nets[way];
    ek_tensor *first = same_parameters(pair, way).tensors[0], *x, *target;
    from += pair->group ? 100 * pair->group->rank : 0;
    if (pair->setting.net == CRITIC)
        return same_penalty(pair, way, first->dtype, from);
    same_batch(&pair->setting, first->dtype, rows, from, &x, &target);
    if (!pair->models[way] || (pair->group && (pair->setting.spans || pair->setting.devices == 1)))
        x = ek_to_device(x, ek_tensor_device(first)); /* no wrapper moves it */
    ek_value y = ek_forward(model, x);
    if (ek_error_status() < 0)
        return NULL;
    return ek_loss(pair->criteria[way], y, target);
}

static int64_t same_batch_size(const same_pair *pair)
{
    const same_setting *s = &pair->setting;
    int rank = pair->group ? pair->group->rank : 0;
    return s->how == UNEVEN ? rank + 1 : s->how == EMPTY && rank == 1 ? 0 : s->batch;
}

int same_backward(same_pair *pair, int way, int64_t from)
{
    ek_tensor *loss = same_loss(pair, way, same_batch_size(pair), from);
    int rc =
        pair->setting.how == HISTORY ? ek_backward(loss, .create_graph = true) : ek_backward(loss);
    return rc < 0 ? rc : ek_item(loss, &pair->losses[way]);
}

/* ---- how gradients come ---- */

static int same_backward_alone(same_pair *pair, int way, int64_t from, int count)
{
    int rc = 0;
    ek_no_sync no_sync = ek_no_sync_begin(pair->models[way]);
    for (int i = 0; i < count && rc >= 0; i++)
        rc = same_backward(pair, way, from + 10 * i);
    ek_no_sync_end(&no_sync);
    return rc;
}

static int same_backward_of_two(same_pair *pair, int way, int64_t from)
{
    ek_tensor *losses[] = {same_loss(pair, way, pair->setting.batch, from),
                           same_loss(pair, way, pair->setting.batch, from + 1)};
    ek_tensor *loss = ek_add(losses[0], ek_mul_scalar(losses[1], 0.5));
    int rc = ek_backward(loss);
    return rc < 0 ? rc : ek_item(loss, &pair->losses[way]);
}

/* Removes the gradient of every second shard. In the gradient of a whole parameter these elements
 * become zeros. */
static int same_drop_shards(const same_pair *pair, int way, int index)
{
    ek_tensor *p = same_parameters(pair, way).tensors[index];
    const ek_tensor *sharded = same_parameters(pair, SHARDED).tensors[index];
    for (int k = 1; k < ek_leaf_shard_count(sharded); k += 2) {
        const ek_shard shard = ek_leaf_shard(sharded, k);
        int rc = way == SHARDED ? ek_tensor_set_grad(shard.tensor, NULL)
                                : ek_shard_read(&shard, NULL, p->grad);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int same_set_gradients(const same_pair *pair, int way, int step)
{
    tensor_list list = same_parameters(pair, way);
    int rc = 0;
    for (int i = 0; i < list.count && rc >= 0; i++) {
        ek_tensor *p = list.tensors[i], *more = ek_mul_scalar(ek_detach(p), 0.5 + 0.1 * i);
        int how = pair->setting.how == GIVEN ? 0 : (i + step) % 5;
        if (!ek_tensor_requires_grad(p) && pair->setting.how != GIVEN)
            continue;
        if (how == 0)
            rc = ek_tensor_set_grad(p, more);
        else if (how == 1)
            rc = ek_backward(ek_sum(ek_mul(p, more)));
        else if (how == 2 && pair->setting.algorithm != NO_EPS) /* 0 / 0 is no number */
            rc = same_drop_shards(pair, way, i);
        else if (how == 3 && step % 2)
            rc = ek_tensor_set_grad(p, NULL);
    }
    return rc;
}

static int same_prepare(same_pair *pair, int way, int step)
{
    const same_setting *s = &pair->setting;
    tensor_list list = same_parameters(pair, way);
    ek_module *model = pair->models[way];
    int rank = pair->group ? pair->group->rank : 0;
    int rc = 0;
    if (s->net == TERMS)
        ((two_terms *)pair->nets[way])->alone =
            (s->how == UNUSED && step % 2) || (s->how == HALF_UNUSED && rank == s->ranks - 1);
    if (s->how == FROZEN)
        for (int i = 0; i < 3 && rc >= 0; i++)
            rc = ek_tensor_set_requires_grad(list.tensors[i], step % (2 + i) != 1);
    if (s->how == THAWED && step == 1)
        rc = ek_tensor_set_requires_grad(ek_module_tensor(pair->nets[way], "side.bias"), true);
    if (s->how == CONVERTED && (step == 2 || step == 4))
        rc = ek_module_to_dtype(model, step == 2 ? EK_F64 : EK_F32);
    if (s->how == CONVERTED && step == 3) {
        rc = ek_module_to_device(model, ek_cpu());
        if (rc >= 0)
            rc = ek_module_to_device(model, test_device(0));
    }
    return rc;
}

int same_come(same_pair *pair, int way, int step)
{
    same_coming how = pair->setting.how;
    int64_t at = 7 * step;
    int rc = same_prepare(pair, way, step);
    if (how != KEPT)
        ek_zero_grad(pair->optimizers[way]);
    if (rc < 0 || (how == NOWHERE && step % 2))
        return rc;
    if (how == TWICE || how == NO_SYNC_AMIDST)
        rc = same_backward(pair, way, at + 1000);
    if (rc >= 0 && (how == AFTER_NO_SYNC || how == NO_SYNC_AMIDST))
        rc = same_backward_alone(pair, way, at + 2000, how == AFTER_NO_SYNC ? 2 : 1);
    if (rc >= 0)
        rc = how == ONE_GRAPH ? same_backward_of_two(pair, way, at) : same_backward(pair, way, at);
    if (rc >= 0 && (how == GIVEN || how == EACH_ITSELF))
        rc = same_set_gradients(pair, way, step);
    if (rc >= 0 && how == CUT)
        rc = ek_clip_grad_value(pair->optimizers[way], 0.05);
    return rc;
}

/* ---- steps ---- */

int same_step(same_pair *pair, int way, int step)
{
    ek_scope scope = ek_scope_begin();
    int rc = same_come(pair, way, step);
    if (rc >= 0)
        rc = settled(ek_step(pair->optimizers[way]));
    ek_scope_end(&scope);
    return rc;
}

const char *same_steps(same_pair *pair, int step)
{
    RANKS_OK(same_step(pair, WHOLE, step));
    RANKS_OK(same_step(pair, SHARDED, step));
    return same_compare(pair, "after a step");
}

int same_step_alike(same_pair *pair, int way, int step)
{
    tensor_list list = same_parameters(pair, way);
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    for (int i = 0; i < list.count && rc >= 0; i++) {
        ek_tensor *p = list.tensors[i];
        if (ek_tensor_requires_grad(p))
            rc = ek_tensor_set_grad(p, ek_mul_scalar(ek_detach(p), 0.3 + 0.1 * step + 0.01 * i));
    }
    if (rc >= 0)
        rc = ek_step(pair->optimizers[way]);
    ek_scope_end(&scope);
    return rc;
}

const char *same_trains(same_pair *pair)
{
    int steps = pair->setting.steps ? pair->setting.steps : 3;
    for (int step = 0; step < steps; step++)
        LOOP_PASS(same_steps(pair, step));
    return NULL;
}

/* ---- comparing to the bit ---- */

bool same_bits(ek_tensor *a, ek_tensor *b)
{
    if (!a || !b)
        return !a && !b;
    a = ek_contiguous(ek_to_device(ek_detach(a), ek_cpu()), EK_CONTIGUOUS);
    b = ek_contiguous(ek_to_device(ek_detach(b), ek_cpu()), EK_CONTIGUOUS);
    return ek_same_shape(a, b) && a->dtype == b->dtype &&
           memcmp(ek_tensor_address(a), ek_tensor_address(b),
                  (size_t)ek_count(a) * ek_dtype_size(a->dtype)) == 0;
}

static const char *same_compare_parameter(const same_pair *pair, ek_tensor *p, ek_tensor *q,
                                          const char *when, int i)
{
    if (!same_bits(p, q) || isnan(element(ek_to_device(ek_detach(q), ek_cpu()), 0)))
        return loop_failure(__FILE__, __LINE__, "%s: parameter %d differs", when, i);
    if (!same_bits(ek_tensor_grad(p), ek_gather_grad(q)))
        return loop_failure(__FILE__, __LINE__, "%s: gradient %d differs", when, i);
    if (ek_optimizer_steps(pair->optimizers[SHARDED], q) !=
        ek_optimizer_steps(pair->optimizers[WHOLE], p))
        return loop_failure(__FILE__, __LINE__, "%s: steps of %d differ", when, i);
    for (int s = 0; s < algorithms[pair->setting.algorithm].states; s++) {
        const char *name = ek_optimizer_state_name(pair->optimizers[WHOLE], s);
        if (!same_bits(ek_optimizer_state(pair->optimizers[WHOLE], p, name),
                       ek_optimizer_state(pair->optimizers[SHARDED], q, name)))
            return loop_failure(__FILE__, __LINE__, "%s: %s of %d differs", when, name, i);
    }
    return NULL;
}

const char *same_compare(const same_pair *pair, const char *when)
{
    tensor_list whole = same_parameters(pair, WHOLE), sharded = same_parameters(pair, SHARDED);
    tensor_list buffers[WAYS] = {{.count = 0}};
    ek_scope scope = ek_scope_begin();
    if (pair->losses[WHOLE] != pair->losses[SHARDED])
        return loop_failure(__FILE__, __LINE__, "%s: loss %.17g, wanted %.17g", when,
                            pair->losses[SHARDED], pair->losses[WHOLE]);
    for (int i = 0; i < whole.count; i++)
        LOOP_PASS(same_compare_parameter(pair, whole.tensors[i], sharded.tensors[i], when, i));
    for (int way = 0; way < WAYS; way++)
        ek_module_buffers(pair->nets[way], tensor_list_add, &buffers[way]);
    for (int i = 0; i < buffers[WHOLE].count; i++)
        if (!same_bits(buffers[WHOLE].tensors[i], buffers[SHARDED].tensors[i]))
            return loop_failure(__FILE__, __LINE__, "%s: buffer %d differs", when, i);
    ek_scope_end(&scope);
    return NULL;
}

/* ---- running ---- */

typedef struct same_run {
    const same_setting *setting;
    same_body *body;
} same_run;

static const char *same_run_rank(ek_process_group *world, void *user)
{
    const same_run *run = user;
    same_pair pair;
    LOOP_PASS(same_make(&pair, world, run->setting));
    LOOP_PASS(run->body(&pair));
    same_free(&pair);
    return NULL;
}

/* What is sharded, and where shards lie. In short runs a case has one of these. */
typedef struct same_sharder {
    ek_shard_policy policy;
    ek_offload_policy offload;
} same_sharder;
enum { SHARDERS = 4 };
static const same_sharder sharders[SHARDERS] = {{EK_SHARD_OPTIMIZER, EK_OFFLOAD_NONE},
                                                {EK_SHARD_PARAMETERS, EK_OFFLOAD_OPTIMIZER},
                                                {EK_SHARD_OPTIMIZER, EK_OFFLOAD_OPTIMIZER},
                                                {EK_SHARD_PARAMETERS, EK_OFFLOAD_NONE}};

void same_check(const same_setting *setting, uint64_t seed, same_body *body)
{
    same_setting own = *setting;
    const same_run run = {&own, body};
    const bool any = own.policy == EK_SHARD_NONE;
    ek_use_deterministic_algorithms(true); /* cuDNN's engines may have no fixed order of sums */
    if (own.ranks > 0) {                   /* offloading, if devices are named: by the case */
        own.policy = any ? EK_SHARD_OPTIMIZER : own.policy;
        if (any && !own.stays && (own.devices > 0 || own.spans))
            own.offload = (ek_offload_policy)(((int)seed + own.how + own.net + own.algorithm) % 2);
        ranks_check(own.ranks, seed, same_run_rank, (void *)&run);
        return;
    }
    for (int k = 0; k < (any && !test_is_short() ? SHARDERS : 1); k++) {
        const same_sharder *sharder = &sharders[((int)seed + own.how + own.net + k) % SHARDERS];
        if (any) {
            own.policy = sharder->policy;
            own.offload = own.stays ? EK_OFFLOAD_NONE : sharder->offload;
        }
        ek_scope scope = ek_scope_begin();
        const char *failure = same_run_rank(NULL, (void *)&run);
        ck_assert_msg(!failure, "shard %d, offload %d: %s", own.policy, own.offload, failure);
        assert_ok(ek_error_status());
        ek_scope_end(&scope);
    }
}
