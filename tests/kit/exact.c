/* exact.c: see exact.h. */
#include "kit/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 6, OUT = 3, SIDE = 6, CLASSES = 4, IGNORED = 255 };

/* Returns the device of models and samples that no wrapper moves: cpu, or the rank's first GPU if
 * EVENKEEL_TEST_DEVICES is "cuda". */
static ek_device exact_home(void)
{
    const char *kind = getenv("EVENKEEL_TEST_DEVICES");
    if (!kind || strcmp(kind, "cuda") != 0)
        return ek_cpu();
    ek_device_list gpus = ek_dist_devices(EK_CUDA);
    return gpus.count > 0 ? gpus.devices[0] : ek_cpu();
}

/* ---- modules ---- */

/* A user's criterion: a mean over the pixels that aren't ignored. If there are none, the mean and
 * its gradient are NaN. */
static ek_tensor *mean_denominator(ek_module *module, const ek_args *args)
{
    (void)module;
    ek_tensor *logits = ek_arg_tensor(args, 0);
    return ek_target_weight(ek_arg_tensor(args, 1), NULL, IGNORED, ek_tensor_dtype(logits));
}

static ek_value mean_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *logits = ek_arg_tensor(args, 0), *target = ek_arg_tensor(args, 1);
    ek_tensor *weight = mean_denominator(module, args);
    if (!weight)
        return ek_value_error();
    ek_tensor *ignored = ek_scalar(IGNORED, EK_I64, ek_tensor_device(target));
    ek_tensor *counts = ek_to_dtype(ek_ne(target, ignored), ek_tensor_dtype(logits));
    counts = counts ? ek_unsqueeze(counts, 1) : NULL;
    ek_tensor *sum = ek_f_cross_entropy(.input = logits, .target = target, .ignore_index = IGNORED,
                                        .reduction = EK_SUM);
    sum = ek_add(sum, ek_sum(ek_mul(ek_square(logits), counts)));
    return ek_value_of_tensor(ek_div(sum, weight));
}

static const ek_module_type mean_type = {.name = "mean",
                                         .size = sizeof(ek_module),
                                         .forward = mean_forward,
                                         .denominator = mean_denominator};

/* Logarithms of probabilities (frames, n, classes) from (n, frames, features). */
typedef struct sequences {
    ek_module module;
    ek_module *body;
} sequences;

static ek_value sequences_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *y = ek_apply(((sequences *)module)->body, ek_arg_tensor(args, 0));
    ek_tensor *frames = ek_transpose(ek_f_log_softmax(y, -1), 0, 1);
    return frames ? ek_value_batched(EK_VALUE(frames), 1) : ek_value_error();
}

static const ek_module_type sequences_type = {.name = "sequences",
                                              .size = sizeof(sequences),
                                              .forward = sequences_forward};

static ek_module *make_sequences(void)
{
    sequences *self = (sequences *)ek_module_new(&sequences_type);
    if (!self)
        return NULL;
    ek_register_module(&self->module, "body", &self->body, ek_linear(IN, CLASSES));
    return ek_module_finish(&self->module);
}

static int fill(const char *path, ek_tensor *parameter, void *user)
{
    int *number = user;
    (void)path;
    double *values = ek_tensor_data(parameter);
    for (int64_t i = 0; i < ek_tensor_count(parameter); i++)
        values[i] = cos((double)(i + 31 * *number) * 1.3) * 0.4;
    ek_tensor_touch(parameter);
    ++*number;
    return 0;
}

int exact_fill(ek_module *module)
{
    int number = 0, rc = module ? ek_module_to_dtype(module, EK_F64) : ek_error_status();
    return rc < 0 ? rc : ek_module_parameters(module, fill, &number);
}

ek_module *exact_tied_new(int inputs, int outputs)
{
    ek_module *net = ek_sequential(ek_linear(inputs, inputs), ek_tanh(), ek_linear(inputs, inputs),
                                   ek_tanh(), ek_linear(1, 1));
    ek_module_set(net, "4", ek_linear(inputs, outputs));
    ek_module_set_tensor(net, "2.weight", ek_module_tensor(net, "0.weight"));
    ek_module_set_tensor(net, "2.bias", NULL);
    return ek_module_finish(net);
}

static ek_module *make_model(exact_task task)
{
    switch (task) {
    case EXACT_MLP:
        return ek_sequential(ek_linear(IN, 9), ek_tanh(), ek_linear(9, OUT));
    case EXACT_CONVOLUTIONS:
        return ek_sequential(ek_conv2d(2, 4, 3, .padding = 1), ek_sync_batch_norm(4), ek_relu(),
                             ek_conv2d(4, 3, 3, .stride = 2), ek_sync_batch_norm(3), ek_tanh(),
                             ek_flatten(1, -1), ek_linear(12, CLASSES));
    case EXACT_SEGMENTATION:
        return ek_sequential(ek_conv2d(2, 4, 3, .padding = 1), ek_sync_batch_norm(4), ek_tanh(),
                             ek_conv2d(4, CLASSES, 1));
    case EXACT_SEQUENCES:
        return make_sequences();
    case EXACT_TIED:
        return exact_tied_new(IN, OUT);
    default:
        return ek_sequential(ek_conv2d(2, 4, 3, .stride = 2), ek_sync_batch_norm(4), ek_tanh(),
                             ek_flatten(1, -1), ek_linear(16, 1));
    }
}

const char *exact_name(exact_task task)
{
    static const char *const names[] = {"MLP",       "convolutions", "segmentation",
                                        "sequences", "critic",       "tied"};
    return names[task];
}

exact_job exact_make(exact_task task, ek_dtype dtype)
{
    exact_job job = {.task = task, .dtype = dtype, .model = make_model(task)};
    if (!job.model || exact_fill(job.model) < 0 || ek_module_to_dtype(job.model, dtype) < 0 ||
        ek_module_to_device(job.model, exact_home()) < 0) {
        exact_free(&job);
        return job;
    }
    job.criteria[0] = task == EXACT_MLP || task == EXACT_TIED ? ek_mse_loss()
                      : task == EXACT_CONVOLUTIONS            ? ek_cross_entropy_loss()
                      : task == EXACT_SEGMENTATION            ? ek_module_new(&mean_type)
                      : task == EXACT_SEQUENCES
                          ? ek_ctc_loss(.blank = CLASSES - 1)
                          : ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_REAL);
    if (task == EXACT_CRITIC)
        job.criteria[1] = ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_FAKE);
    return job;
}

int exact_wrap_devices(exact_job *job, exact_way way, ek_device_list devices,
                       ek_process_group *group)
{
    if (way == EXACT_BALANCED)
        job->model = ek_data_parallel_model(job->model, .device_ids = devices);
    job->model = way == EXACT_CLASSIC
                     ? ek_distributed_data_parallel(job->model, .device_ids = devices,
                                                    .process_group = group)
                     : ek_distributed_data_parallel(job->model, .process_group = group);
    for (int i = 0; i < 2 && job->criteria[i]; i++) {
        if (way == EXACT_BALANCED)
            job->criteria[i] = ek_data_parallel_criterion(job->criteria[i], .device_ids = devices);
        job->criteria[i] = ek_distributed_criterion(job->criteria[i], .process_group = group);
        if (!job->criteria[i])
            return ek_error_status();
    }
    return job->model ? 0 : ek_error_status();
}

int exact_wrap(exact_job *job, exact_way way, ek_process_group *group)
{
    ek_device_list devices = way == EXACT_ONE_DEVICE ? (ek_device_list){0} : ek_devices(EK_HOST, 2);
    return exact_wrap_devices(job, way, devices, group);
}

void exact_free(exact_job *job)
{
    ek_module_free(job->model);
    for (int i = 0; i < 2; i++)
        ek_module_free(job->criteria[i]);
    *job = (exact_job){.task = job->task};
}

/* ---- samples ---- */

static double number_of(int64_t sample, int64_t i, int salt)
{
    return sin((double)(sample * 211 + i * 7 + salt * 1013) * 0.77) * 1.3;
}

/* Returns the numbers of samples from `first` on. `shape` begins with the number of samples. */
static ek_tensor *samples(const exact_job *job, ek_shape shape, int64_t first, int salt)
{
    ek_tensor *x = ek_empty(shape, .dtype = EK_F64, .device = ek_cpu());
    double *values = x ? ek_tensor_data(x) : NULL;
    int64_t each = 1;
    for (int d = 1; d < shape.ndim; d++)
        each *= shape.dims[d];
    for (int64_t i = 0; x && i < each * shape.dims[0]; i++)
        values[i] = number_of(first + i / each, i % each, salt);
    if (!x)
        return NULL;
    ek_tensor_touch(x);
    return ek_to_device(ek_to_dtype(x, job->dtype), exact_home());
}

static ek_tensor *targets(ek_shape shape, int64_t first, bool ignores)
{
    ek_tensor *x = ek_empty(shape, .dtype = EK_I64, .device = ek_cpu());
    int64_t *values = x ? ek_tensor_data(x) : NULL, each = 1;
    for (int d = 1; d < shape.ndim; d++)
        each *= shape.dims[d];
    for (int64_t i = 0; x && i < each * shape.dims[0]; i++) {
        int64_t sample = first + i / each, kind = sample % 9;
        bool ignored = ignores && (kind < 2 || i % each % (2 + kind) == 0);
        values[i] = ignored ? IGNORED : (sample * 3 + i % each) % CLASSES;
    }
    if (!x)
        return NULL;
    ek_tensor_touch(x);
    return x;
}

/* ---- a step ---- */

static ek_tensor *critic_loss(const exact_job *job, int64_t first, int64_t count)
{
    ek_tensor *real = samples(job, EK_SHAPE(count, 2, SIDE, SIDE), first, 1);
    ek_tensor *fake = samples(job, EK_SHAPE(count, 2, SIDE, SIDE), first, 2);
    if (!real || !fake)
        return NULL;
    ek_generator *generator = ek_generator_new(17);
    ek_tensor *on_real = ek_loss(job->criteria[0], ek_forward(job->model, real));
    ek_tensor *on_fake = ek_loss(job->criteria[1], ek_forward(job->model, fake));
    ek_tensor *penalty =
        on_real && on_fake ? ek_gradient_penalty(job->model, real, fake, .kind = EK_PENALTY_WGAN_GP,
                                                 .generator = generator)
                           : NULL;
    ek_generator_free(generator);
    return penalty ? ek_add(ek_add(on_real, on_fake), penalty) : NULL;
}

ek_tensor *exact_loss(const exact_job *job, int64_t first, int64_t count)
{
    ek_tensor *x, *y, *lengths;
    switch (job->task) {
    case EXACT_MLP:
    case EXACT_TIED:
        x = samples(job, EK_SHAPE(count, IN), first, 1);
        y = samples(job, EK_SHAPE(count, OUT), first, 2);
        break;
    case EXACT_CONVOLUTIONS:
        x = samples(job, EK_SHAPE(count, 2, SIDE, SIDE), first, 1);
        y = targets(EK_SHAPE(count), first, false);
        break;
    case EXACT_SEGMENTATION:
        x = samples(job, EK_SHAPE(count, 2, SIDE, SIDE), first, 1);
        y = targets(EK_SHAPE(count, SIDE, SIDE), first, true);
        break;
    case EXACT_SEQUENCES:
        x = samples(job, EK_SHAPE(count, SIDE, IN), first, 1);
        y = ek_clamp(targets(EK_SHAPE(count, 2), first, false), 0, CLASSES - 2);
        lengths = ek_add_scalar(ek_select(y, 1, 0), 1);
        return ek_loss(job->criteria[0], ek_forward(job->model, x),
                       EK_LIST(y, ek_add_scalar(lengths, 1), ek_clamp(lengths, 0, 2)));
    default:
        return critic_loss(job, first, count);
    }
    return x && y ? ek_loss(job->criteria[0], ek_forward(job->model, x), y) : NULL;
}

/* ---- outcomes ---- */

typedef struct list {
    ek_tensor *tensors[40];
    int count;
} list;

static int add(list *l, ek_tensor *x)
{
    x = x ? ek_to_device(ek_to_dtype(ek_detach(x), EK_F64), ek_cpu()) : NULL;
    x = x ? ek_reshape(x, EK_SHAPE(-1)) : NULL;
    l->tensors[l->count++] = x;
    return x ? 0 : -1;
}

static int add_gradient(const char *path, ek_tensor *parameter, void *user)
{
    (void)path;
    return ek_tensor_grad(parameter) ? add(user, ek_tensor_grad(parameter)) : 0;
}

static int add_parameter(const char *path, ek_tensor *parameter, void *user)
{
    (void)path;
    return add(user, parameter);
}

static int add_buffer(const char *path, ek_tensor *buffer, void *user)
{
    (void)path;
    return add(user, buffer);
}

ek_tensor *exact_outcome(const exact_job *job, ek_tensor *loss)
{
    list l = {0};
    if (add(&l, loss) < 0 || ek_module_parameters(job->model, add_gradient, &l) != 0 ||
        ek_module_buffers(job->model, add_buffer, &l) != 0)
        return NULL;
    return ek_cat(l.tensors, l.count, 0);
}

ek_tensor *exact_gradients(const exact_job *job)
{
    list l = {0};
    return ek_module_parameters(job->model, add_gradient, &l) == 0 ? ek_cat(l.tensors, l.count, 0)
                                                                   : NULL;
}

ek_tensor *exact_parameters(const exact_job *job)
{
    list l = {0};
    return ek_module_parameters(job->model, add_parameter, &l) == 0 ? ek_cat(l.tensors, l.count, 0)
                                                                    : NULL;
}

double exact_distance(const ek_tensor *a, const ek_tensor *b)
{
    int64_t count = ek_tensor_count(b);
    double *values = malloc(2 * (size_t)count * sizeof *values), sum = 0, norm = 0;
    size_t nbytes = (size_t)count * sizeof *values;
    bool read = values && ek_tensor_count(a) == count && ek_to_data(a, values, nbytes) >= 0 &&
                ek_to_data(b, values + count, nbytes) >= 0;
    for (int64_t i = 0; read && i < count; i++) {
        double apart = values[i] - values[count + i];
        sum += apart * apart;
        norm += values[count + i] * values[count + i];
    }
    free(values);
    return read ? sqrt(sum / norm) : NAN;
}

/* ---- bits ---- */

/* Adds a tensor to an FNV-1a hash, of words in place of bytes. */
static int hash(uint64_t *bits, ek_tensor *x)
{
    size_t nbytes = (size_t)ek_tensor_count(x) * ek_dtype_size(ek_tensor_dtype(x));
    size_t words = (nbytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    uint64_t *data = calloc(words + 1, sizeof *data);
    int rc = data ? ek_to_data(x, data, nbytes) : ek_error(EK_E_USER, "out of memory");
    for (size_t i = 0; i < words && rc >= 0; i++)
        *bits = (*bits ^ data[i]) * UINT64_C(0x100000001b3);
    free(data);
    return rc < 0 ? rc : 0;
}

static int hash_parameter(const char *path, ek_tensor *parameter, void *user)
{
    ek_tensor *gradient = ek_tensor_grad(parameter);
    (void)path;
    int rc = hash(user, parameter);
    return rc < 0 || !gradient ? rc : hash(user, gradient);
}

static int hash_buffer(const char *path, ek_tensor *buffer, void *user)
{
    (void)path;
    return hash(user, buffer);
}

uint64_t exact_bits(ek_module *model)
{
    uint64_t bits = UINT64_C(0xcbf29ce484222325);
    return ek_module_parameters(model, hash_parameter, &bits) == 0 &&
                   ek_module_buffers(model, hash_buffer, &bits) == 0
               ? bits
               : 0;
}
