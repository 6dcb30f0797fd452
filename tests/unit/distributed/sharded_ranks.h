/* sharded_ranks.h: the same training twice on ranks that are threads: with whole optimizers on
 * every rank, and with sharded ones. What comes out must be the same to the bit. */
#ifndef EK_TESTS_SHARDED_RANKS_H
#define EK_TESTS_SHARDED_RANKS_H

#include "kit/optimizers.h"
#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "kit/ranks.h"

enum { IN = 6, HIDDEN = 40, OUT = 3, MOST = 16 };

/* ---- the module: y = main(x) + side(x), with the second term or without ---- */

typedef struct two_ways {
    ek_module module;
    ek_module *main, *side;
    bool alone; /* without the second term, whose parameters then get no gradient */
    bool fails;
} two_ways;

static ek_value two_ways_forward(ek_module *module, const ek_args *args)
{
    const two_ways *self = (two_ways *)module;
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_apply(self->main, x), *z;
    if (self->fails) {
        ek_error(EK_E_USER, "out of luck");
        return ek_value_error();
    }
    if (self->alone)
        return ek_value_of_tensor(y);
    z = ek_apply(self->side,
                 ek_to_device(x, ek_tensor_device(ek_module_tensor(self->side, "weight"))));
    return ek_value_of_tensor(ek_add(y, ek_to_device(z, ek_tensor_device(y))));
}

static const ek_module_type two_ways_type = {.name = "two_ways",
                                             .size = sizeof(two_ways),
                                             .forward = two_ways_forward};

static int two_ways_fill(const char *path, ek_tensor *parameter, void *user)
{
    int *number = user;
    (void)path;
    for (int64_t i = 0; i < ek_count(parameter); i++) {
        double x = cos((double)(i + 31 * *number)) * 0.3;
        if (parameter->dtype == EK_F64)
            ((double *)ek_tensor_address(parameter))[i] = x;
        else
            ((float *)ek_tensor_address(parameter))[i] = (float)x;
    }
    ek_tensor_touch(parameter);
    ++*number;
    return 0;
}

/* On `device`, the same each time; the second term's bias is frozen. NULL with an error. */
static inline two_ways *two_ways_new(ek_dtype dtype, ek_device device)
{
    int number = 0;
    two_ways *self = (two_ways *)ek_module_new(&two_ways_type);
    ek_register_module(&self->module, "main", &self->main,
                       ek_sequential(ek_linear(IN, HIDDEN), ek_tanh(), ek_linear(HIDDEN, OUT)));
    ek_register_module(&self->module, "side", &self->side, ek_linear(IN, OUT));
    if (ek_module_to_dtype(&self->module, dtype) < 0 ||
        ek_module_parameters(&self->module, two_ways_fill, &number) < 0 ||
        ek_module_to_device(&self->module, device) < 0 ||
        ek_tensor_set_requires_grad(ek_module_tensor(&self->module, "side.bias"), false) < 0)
        return NULL;
    return self;
}

static inline ek_tensor *rows_of(int64_t rows, int64_t columns, ek_dtype dtype, int64_t from)
{
    double values[1024];
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = sin((double)(i + from * columns) * 1.7) * 0.7;
    ek_tensor *x = ek_from_data(values, EK_SHAPE(rows, columns), EK_F64, .device = ek_cpu());
    return ek_to_dtype(x, dtype);
}

/* ---- a pair of models, with an optimizer each ---- */

#define ALGORITHM_LIST(X)                                                                    \
    X(plain, "plain", 0, ek_sgd(module, .lr = 0.1, .weight_decay = 0.05))                    \
    X(momentum, "momentum", 1, ek_sgd(module, .lr = 0.1, .momentum = 0.9))                   \
    X(nesterov, "nesterov", 1, ek_sgd(module, .lr = 0.1, .momentum = 0.8, .nesterov = true)) \
    X(adam, "adam", 2, ek_adam(module, .lr = 0.01, .weight_decay = 0.1))                     \
    X(amsgrad, "amsgrad", 3, ek_adam(module, .lr = 0.01, .amsgrad = true))                   \
    X(adamw, "adamw", 2, ek_adamw(module, .lr = 0.01))
ALGORITHM_LIST(OPTIMIZER_MAKER)
static const optimizer_row algorithms[] = {ALGORITHM_LIST(OPTIMIZER_ROW)};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms, MOMENTUM = 1, ADAM = 3, ADAMW = 5 };

typedef struct pair_setting {
    ek_dtype dtype;
    int algorithm;
    int devices; /* per rank; 0: cpu */
    double cap;  /* MiB of a bucket; 0: 25 */
    bool narrow, groups;
    bool spans; /* over two devices: each term is on one of them */
} pair_setting;

enum { WHOLE, SHARDED, WAYS };

typedef struct model_pair {
    pair_setting setting;
    ek_process_group *group;
    two_ways *nets[WAYS]; /* borrowed from the models */
    ek_module *models[WAYS];
    ek_optimizer *optimizers[WAYS];
} model_pair;

static inline ek_device_list devices_of(const ek_process_group *group, int count)
{
    ek_device_list list = {.count = count};
    for (int k = 0; k < count; k++)
        list.devices[k] = test_device(group->rank * count + k);
    return list;
}

typedef struct tensor_list {
    ek_tensor *tensors[MOST];
    int count;
} tensor_list;

static int tensor_list_add(const char *path, ek_tensor *tensor, void *user)
{
    tensor_list *list = user;
    (void)path;
    list->tensors[list->count++] = tensor;
    return 0;
}

static inline tensor_list parameters_of(ek_module *model)
{
    tensor_list list = {0};
    ek_module_parameters(model, tensor_list_add, &list);
    return list;
}

static inline ek_optimizer *optimizer_new(const pair_setting *setting, ek_module *model)
{
    const optimizer_row *row = &algorithms[setting->algorithm];
    if (!setting->groups)
        return row->make(model);
    tensor_list list = parameters_of(model);
    ek_optimizer *optimizer = row->make(NULL);
    if (!optimizer || ek_optimizer_add_group(optimizer, list.tensors, 1) < 0)
        return NULL;
    const double lr = ek_optimizer_lr(optimizer, 0);
    return add_group_with(optimizer, list.tensors + 1, list.count - 1, "lr", 0.5 * lr) < 0
               ? NULL
               : optimizer;
}

static inline const char *pair_make(model_pair *pair, ek_process_group *group,
                                    const pair_setting *setting)
{
    *pair = (model_pair){.setting = *setting, .group = group};
    ek_device_list devices = devices_of(group, setting->spans ? 2 : setting->devices);
    ek_device_list wrapped = devices;
    if (setting->spans) /* it stays where it is */
        wrapped.count = 0;
    for (int way = 0; way < WAYS; way++) {
        two_ways *net = two_ways_new(setting->dtype, devices.count ? devices.devices[0] : ek_cpu());
        if (net && setting->spans)
            RANKS_OK(ek_module_to_device(net->side, devices.devices[1]));
        LOOP_CHECK(net);
        pair->nets[way] = net;
        pair->models[way] =
            ek_distributed_data_parallel(&net->module, .device_ids = wrapped,
                                         .process_group = group,
                                         .bucket_cap_mb = setting->cap > 0 ? setting->cap : 25,
                                         .bf16_gradients = setting->narrow,
                                         .shard =
                                             way == SHARDED ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
        if (!pair->models[way])
            return loop_failure(__FILE__, __LINE__, "%s", ek_error_message());
        pair->optimizers[way] = optimizer_new(setting, pair->models[way]);
        LOOP_CHECK(pair->optimizers[way]);
    }
    return NULL;
}

static inline void pair_free(model_pair *pair)
{
    for (int way = 0; way < WAYS; way++) {
        ek_module_free(pair->models[way]);
        ek_optimizer_free(pair->optimizers[way]);
    }
}

/* The loss of some samples. */
static inline ek_tensor *loss_of(const model_pair *pair, int way, int64_t rows, int64_t from)
{
    ek_dtype dtype = pair->setting.dtype;
    ek_tensor *x = rows_of(rows, IN, dtype, from);
    if (pair->setting.spans || pair->setting.devices == 1) /* no wrapper moves it */
        x = ek_to_device(x, ek_tensor_device(ek_module_tensor(pair->models[way], "main.0.weight")));
    ek_tensor *y = ek_apply(pair->models[way], x);
    ek_tensor *wanted = rows_of(rows, OUT, dtype, from + 50);
    if (!y)
        return NULL;
    ek_tensor *apart = ek_sub(y, ek_to_device(wanted, ek_tensor_device(y)));
    return ek_sum(ek_mul(apart, apart));
}

static inline int pair_backward(const model_pair *pair, int way, int64_t rows, int64_t from)
{
    return ek_backward(loss_of(pair, way, rows, from + 100 * pair->group->rank));
}

/* ---- comparing to the bit ---- */

static inline bool same_bits(ek_tensor *a, ek_tensor *b)
{
    if (!a || !b)
        return !a && !b;
    a = ek_contiguous(ek_to_device(ek_detach(a), ek_cpu()), EK_CONTIGUOUS);
    b = ek_contiguous(ek_to_device(ek_detach(b), ek_cpu()), EK_CONTIGUOUS);
    return ek_same_shape(a, b) && a->dtype == b->dtype &&
           memcmp(ek_tensor_address(a), ek_tensor_address(b),
                  (size_t)ek_count(a) * ek_dtype_size(a->dtype)) == 0;
}

/* Parameters, gradients, states and step counts are the same, and numbers are no NaN. */
static inline const char *pair_compare(const model_pair *pair, const char *when)
{
    tensor_list whole = parameters_of(pair->models[WHOLE]);
    tensor_list sharded = parameters_of(pair->models[SHARDED]);
    ek_scope scope = ek_scope_begin();
    for (int i = 0; i < whole.count; i++) {
        ek_tensor *p = whole.tensors[i], *q = sharded.tensors[i];
        if (!same_bits(p, q) || isnan(element(ek_to_device(ek_detach(q), ek_cpu()), 0)))
            return loop_failure(__FILE__, __LINE__, "%s: parameter %d differs", when, i);
        if (!same_bits(ek_tensor_grad(p), ek_gather_grad(q)))
            return loop_failure(__FILE__, __LINE__, "%s: gradient %d differs", when, i);
        int64_t steps = ek_optimizer_steps(pair->optimizers[WHOLE], p);
        if (ek_optimizer_steps(pair->optimizers[SHARDED], q) != steps)
            return loop_failure(__FILE__, __LINE__, "%s: steps of %d differ", when, i);
        for (int s = 0; s < algorithms[pair->setting.algorithm].states; s++) {
            const char *name = ek_optimizer_state_name(pair->optimizers[WHOLE], s);
            if (!same_bits(ek_optimizer_state(pair->optimizers[WHOLE], p, name),
                           ek_optimizer_state(pair->optimizers[SHARDED], q, name)))
                return loop_failure(__FILE__, __LINE__, "%s: %s of %d differs", when, name, i);
        }
    }
    ek_scope_end(&scope);
    return NULL;
}

#endif
