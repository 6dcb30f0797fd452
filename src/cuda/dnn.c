/* dnn.c: see dnn.h. */
#include "cuda/dnn.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/environment.h"
#include "cuda/dnn_plan.h"
#include "evenkeel/precision.h"
#include "kernels/stage.h"

/* ---- problems ---- */

bool ek_dnn_is_dense(const ek_tensor *tensor, ek_memory_format format)
{
    return ek_is_dense_along(tensor, ek_axis_of(format, tensor->ndim));
}

int64_t ek_dnn_alignment(const void *address)
{
    int64_t alignment = 16;
    while ((uintptr_t)address % (uintptr_t)alignment != 0)
        alignment /= 2;
    return alignment;
}

/* Sets the padding after x in dimension i, from which cuDNN derives y's size: the padding before x
 * if it fits, because most engines support only equal paddings, else the largest that fits. Returns
 * false if this padding is negative, because cuDNN can't skip the end of x. */
static bool dnn_fit_padding(ek_dnn_problem *p, int i)
{
    int64_t window = p->dilation[i] * (p->w[2 + i] - 1) + 1;
    /* positions of the padded x that are read */
    int64_t read = (p->y[2 + i] - 1) * p->stride[i] + window;
    int64_t least = read - p->x[2 + i] - p->before[i], most = least + p->stride[i] - 1;
    p->after[i] = p->before[i];
    if (p->before[i] < least || p->before[i] > most)
        p->after[i] = most;
    return p->after[i] >= 0;
}

bool ek_dnn_problem_of(ek_dnn_problem *p, ek_dnn_operation operation, const ek_tensor *x,
                       const ek_tensor *w, const ek_tensor *y, const ek_conv_params *params,
                       ek_memory_format format)
{
    memset(p, 0, sizeof *p);
    if (ek_dtype_wide(x->dtype) != EK_F32)
        return false;
    if ((params->dims != 2 && params->dims != 3) || x->ndim != 2 + params->dims)
        return false;
    p->operation = operation;
    p->dtype = x->dtype;
    p->format = format;
    p->dims = params->dims;
    p->alignment = 16;
    p->tf32 = x->dtype == EK_F32 && ek_tf32_convolution_allowed();
    p->deterministic = ek_deterministic();
    for (int d = 0; d < x->ndim; d++) {
        p->x[d] = x->shape[d];
        p->w[d] = w->shape[d];
        p->y[d] = y->shape[d];
    }
    for (int i = 0; i < params->dims; i++) {
        p->stride[i] = params->stride[i];
        p->before[i] = params->padding[i];
        p->dilation[i] = params->dilation[i];
        if (!dnn_fit_padding(p, i))
            return false;
    }
    return true;
}

static int64_t dnn_count_of(const int64_t *shape, int64_t ndim)
{
    int64_t count = 1;
    for (int64_t d = 0; d < ndim; d++)
        count *= shape[d];
    return count;
}

int64_t ek_dnn_copied(const ek_dnn_problem *p, int64_t workspace)
{
    int64_t ndim = 2 + p->dims;
    int64_t count = p->format == EK_CHANNELS_LAST
                        ? dnn_count_of(p->x, ndim) + dnn_count_of(p->y, ndim)
                        : dnn_count_of(p->w, ndim);
    return workspace + count * (int64_t)ek_dtype_size(p->dtype);
}

ek_memory_format ek_dnn_format(ek_dtype dtype)
{
    return dtype == EK_F32 && !ek_tf32_convolution_allowed() && ek_cudnn() ? EK_CONTIGUOUS
                                                                           : EK_CHANNELS_LAST;
}

/* ---- EVENKEEL_CUDA_PLANS ---- */

static bool dnn_shows(void)
{
    bool wanted = false;
    return ek_environment_switch("EVENKEEL_CUDA_PLANS", &wanted) >= 0 && wanted;
}

void ek_cuda_show(ek_dev *dev, ek_cuda_shown *last, const char *format, ...)
{
    ek_cuda_shown text;
    va_list arguments;
    if (!dnn_shows())
        return;
    va_start(arguments, format);
    vsnprintf(text.line, sizeof text.line, format, arguments);
    va_end(arguments);
    const size_t compared = strcspn(text.line, ";");
    pthread_mutex_lock(&ek_cuda_of(dev)->lock);
    if (strncmp(text.line, last->line, compared) != 0)
        fprintf(stderr, "%s\n", text.line);
    *last = text;
    pthread_mutex_unlock(&ek_cuda_of(dev)->lock);
}

#ifdef EK_HAVE_CUDNN

/* ---- the plans of a device ---- */

/* The most plans that a device keeps. A training step of a large model has some hundreds. */
enum { PLANS = 512 };

/* The most bytes of workspace of a problem's first plan, or room for copies of all three tensors in
 * another order if that is more. Without a limit, one layer's workspace could determine the largest
 * batch. */
static const int64_t usual_workspace = (int64_t)1 << 30;

typedef struct kept_plan {
    ek_dnn_problem problem;
    ek_dnn_plan plan;     /* without a descriptor if no engine computes the problem */
    ek_dnn_plan fallback; /* runs while memory is short for the workspace of `plan` */
    bool fell_back;       /* `fallback` was searched for, and has no descriptor if none was found */
    bool timed;           /* plans were timed, or timing was not possible */
    bool tensor_cores;    /* the plan that was made first uses tensor cores */
    int64_t workspace;    /* bytes of workspace of the plan that was made first */
    uint64_t used;
} kept_plan;

struct ek_cuda_dnn {
    const ek_cudnn_api *api;
    cudnnHandle_t handle; /* NULL if it could not be made */
    uint64_t clock;
    int count;
    uint64_t hashes[PLANS]; /* kept side by side, because a look-up reads only these */
    kept_plan *plans;
};

static uint64_t dnn_hash_of(const ek_dnn_problem *problem)
{
    const unsigned char *bytes = (const unsigned char *)problem;
    uint64_t hash = EK_DIGEST, word;
    for (size_t i = 0; i < sizeof *problem; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        hash = ek_digest_word(hash, word);
        hash ^= hash >> 29;
    }
    return hash;
}

static kept_plan *dnn_find(struct ek_cuda_dnn *dnn, const ek_dnn_problem *problem, uint64_t hash)
{
    for (int i = 0; i < dnn->count; i++)
        if (dnn->hashes[i] == hash && memcmp(&dnn->plans[i].problem, problem, sizeof *problem) == 0)
            return &dnn->plans[i];
    return NULL;
}

static void dnn_free_plans(const struct ek_cuda_dnn *dnn, kept_plan *entry)
{
    ek_dnn_plan_free(dnn->api, &entry->plan);
    ek_dnn_plan_free(dnn->api, &entry->fallback);
}

/* Returns an entry for a new problem: a free entry, or that of the least recently used plan. */
static kept_plan *dnn_entry(struct ek_cuda_dnn *dnn, const ek_dnn_problem *problem, uint64_t hash)
{
    int at = dnn->count;
    if (at < PLANS) {
        dnn->count++;
    } else {
        at = 0;
        for (int i = 1; i < PLANS; i++)
            if (dnn->plans[i].used < dnn->plans[at].used)
                at = i;
        dnn_free_plans(dnn, &dnn->plans[at]);
    }
    dnn->hashes[at] = hash;
    dnn->plans[at] = (kept_plan){.problem = *problem};
    return &dnn->plans[at];
}

static int64_t dnn_most_workspace(const ek_dnn_problem *p)
{
    if (p->operation >= EK_DNN_ATTENTION)
        return usual_workspace;
    int64_t ndim = 2 + p->dims;
    int64_t count = dnn_count_of(p->x, ndim) + dnn_count_of(p->w, ndim) + dnn_count_of(p->y, ndim);
    int64_t nbytes = (count + 1024) * (int64_t)sizeof(float);
    return nbytes > usual_workspace ? nbytes : usual_workspace;
}

static void dnn_show(const ek_dnn_problem *problem, const ek_dnn_plan *plan)
{
    char text[EK_DNN_TEXT];
    if (dnn_shows())
        fprintf(stderr, "cuDNN: %s\n", ek_dnn_plan_text(problem, plan, text));
}

/* Makes a plan with at most `most` bytes of workspace. Without an engine the plan has no
 * descriptor. */
static void dnn_make_plan(const struct ek_cuda_dnn *dnn, const ek_dnn_problem *problem,
                          int64_t most, ek_dnn_plan *plan)
{
    (void)ek_dnn_plan_make(dnn->api, &(ek_dnn_target){.handle = dnn->handle}, problem, most, plan);
    /* Clears an error of a failed attempt, which the next launch would return. */
    (void)cudaGetLastError();
    dnn_show(problem, plan);
}

static kept_plan *dnn_plan_for(struct ek_cuda_dnn *dnn, const ek_dnn_problem *problem)
{
    uint64_t hash = dnn_hash_of(problem);
    kept_plan *entry = dnn_find(dnn, problem, hash);
    if (!entry) {
        entry = dnn_entry(dnn, problem, hash);
        dnn_make_plan(dnn, problem, dnn_most_workspace(problem), &entry->plan);
        entry->tensor_cores = ek_dnn_plan_has(&entry->plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
        entry->workspace = entry->plan.workspace;
    }
    entry->used = ++dnn->clock;
    return entry;
}

/* ---- the handle ---- */

static void dnn_make_handle(ek_dev *dev, struct ek_cuda_dnn *dnn)
{
    cudnnStatus_t status = dnn->api->cudnnCreate(&dnn->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->api->cudnnSetStream(dnn->handle, ek_cuda_of(dev)->compute);
    if (status == CUDNN_STATUS_SUCCESS)
        return;
    (void)cudaGetLastError();
    ek_log_line(EK_LOG_WARNING, "%s: cuDNN cannot be used (%s): convolutions will be slow",
                dev->name, dnn->api->cudnnGetErrorString(status));
    if (dnn->handle)
        (void)dnn->api->cudnnDestroy(dnn->handle);
    dnn->handle = NULL;
}

/* Sets *dnn to the device's cuDNN; NULL if there is none. device->lock is held. */
static int dnn_enter(ek_dev *dev, struct ek_cuda_dnn **dnn)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    const ek_cudnn_api *api = ek_cudnn();
    *dnn = NULL;
    if (!api)
        return 0;
    if (!device->dnn) {
        struct ek_cuda_dnn *made = calloc(1, sizeof *made);
        kept_plan *plans = calloc(PLANS, sizeof *plans);
        if (!made || !plans) {
            free(made);
            free(plans);
            return EK_FAIL(EK_E_NO_MEMORY, "no memory for cuDNN's plans on %s", dev->name);
        }
        made->api = api;
        made->plans = plans;
        dnn_make_handle(dev, made);
        device->dnn = made;
    }
    if (device->dnn->handle)
        *dnn = device->dnn;
    return 0;
}

int ek_cuda_dnn_handle(ek_dev *dev, cudnnHandle_t *handle)
{
    struct ek_cuda_dnn *dnn;
    int rc = dnn_enter(dev, &dnn);
    *handle = rc >= 0 && dnn ? dnn->handle : NULL;
    return rc;
}

void ek_cuda_dnn_close(ek_cuda_device *device)
{
    struct ek_cuda_dnn *dnn = device->dnn;
    if (!dnn)
        return;
    int restore = ek_cuda_enter_anyway(device->dev);
    for (int i = 0; i < dnn->count; i++)
        dnn_free_plans(dnn, &dnn->plans[i]);
    if (dnn->handle)
        (void)dnn->api->cudnnDestroy(dnn->handle);
    ek_cuda_leave(device->dev, restore);
    free(dnn->plans);
    free(dnn);
    device->dnn = NULL;
}

/* ---- calls ---- */

int ek_cuda_dnn_supports(ek_dev *dev, const ek_dnn_problem *problem, int64_t *workspace)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    struct ek_cuda_dnn *dnn;
    pthread_mutex_lock(&device->lock);
    int rc = dnn_enter(dev, &dnn);
    if (rc >= 0 && dnn) {
        const kept_plan *entry = dnn_plan_for(dnn, problem);
        rc = !entry->plan.plan ? 0 : entry->tensor_cores ? 2 : 1;
        if (workspace)
            *workspace = entry->workspace;
    }
    pthread_mutex_unlock(&device->lock);
    return rc;
}

static const char *const dnn_names[] = {[EK_DNN_FORWARD] = "convolution",
                                        [EK_DNN_INPUT_GRADIENT] = "convolution's input gradient",
                                        [EK_DNN_WEIGHT_GRADIENT] = "convolution's weight gradient",
                                        [EK_DNN_ATTENTION] = "attention",
                                        [EK_DNN_ATTENTION_GRADIENT] = "attention's gradient"};

int ek_cuda_dnn_failed(ek_dev *dev, const char *name, const char *of, cudnnStatus_t status)
{
    char why[256] = "";
    ek_cudnn()->cudnnGetLastErrorString(why, sizeof why);
    int late = ek_cuda_late(dev);
    if (late != cudaSuccess)
        EK_TRY(ek_cuda_check(dev, name, late));
    return EK_FAIL(EK_E_BACKEND, "%s%s: cuDNN says %s (%d) %s", name, of,
                   ek_cudnn()->cudnnGetErrorString(status), (int)status, why);
}

/* Allocates workspace for the entry's plan or, if memory is short, for its fallback, which needs at
 * most half as much. The fallback is kept, because a search in every step would be slower than any
 * plan. Memory for the plan may be there again in the next call, which tries the plan first.
 * Returns 1 with *plan (borrowed) and *workspace, 0 if no plan is left, negative on error. */
static int dnn_find_workspace(ek_dev *dev, const struct ek_cuda_dnn *dnn, kept_plan *entry,
                              ek_dnn_plan **plan, void **workspace)
{
    *workspace = NULL;
    for (*plan = &entry->plan; (*plan)->plan; *plan = &entry->fallback) {
        int64_t nbytes = (*plan)->workspace;
        int rc = ek_cuda_try_scratch(dev, ek_cuda_padded(nbytes), workspace);
        if (rc != 0)
            return rc;
        if (*plan == &entry->plan && entry->fell_back)
            continue;
        ek_dnn_plan_free(dnn->api, &entry->fallback);
        dnn_make_plan(dnn, &entry->problem, nbytes / 2, &entry->fallback);
        entry->fell_back = true;
        ek_log_line(EK_LOG_INFO, "%s: no %lld bytes of workspace are left for a %s: %s", dev->name,
                    (long long)nbytes, dnn_names[entry->problem.operation],
                    entry->fallback.plan ? "one with less is used" : "it is computed directly");
    }
    return 0;
}

/* If timing is requested, replaces the plan that cuDNN suggests by the fastest one, once for each
 * problem. With deterministic algorithms the suggested plan is kept, because which plan is the
 * fastest varies. */
static int dnn_time_plans(ek_dev *dev, struct ek_cuda_dnn *dnn, kept_plan *entry,
                          const ek_dnn_memory *memory)
{
    if (!entry->plan.plan || entry->timed || entry->problem.deterministic ||
        entry->problem.operation >= EK_DNN_ATTENTION || !ek_convolution_benchmarked())
        return 0;
    entry->timed = true;
    int rc = ek_dnn_plan_choose_fastest(dev, dnn->api, dnn->handle, &entry->problem,
                                        dnn_most_workspace(&entry->problem), memory, &entry->plan);
    (void)cudaGetLastError();
    if (rc > 0)
        dnn_show(&entry->problem, &entry->plan);
    return rc;
}

/* Issues the problem. *status becomes cuDNN's error, if that is why this returns 1. */
static int dnn_issue(ek_dev *dev, const ek_dnn_problem *problem, ek_dnn_memory *memory,
                     cudnnStatus_t *status)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    struct ek_cuda_dnn *dnn;
    void *workspace = NULL;
    *status = CUDNN_STATUS_SUCCESS;
    pthread_mutex_lock(&device->lock);
    int rc = dnn_enter(dev, &dnn);
    if (rc >= 0 && dnn) {
        kept_plan *entry = dnn_plan_for(dnn, problem);
        ek_dnn_plan *plan = NULL;
        rc = dnn_time_plans(dev, dnn, entry, memory);
        if (rc >= 0)
            rc = dnn_find_workspace(dev, dnn, entry, &plan, &workspace);
        if (rc > 0) {
            size_t nbytes = ek_cuda_padded(plan->workspace);
            memory->workspace = ek_cuda_aligned(workspace);
            *status = ek_dnn_plan_run(dnn->api, dnn->handle, plan, memory);
            if (CUDNN_STATUS_CATEGORY(*status) == CUDNN_STATUS_NOT_SUPPORTED)
                rc = 0, ek_dnn_plan_free(dnn->api, plan);
            if (workspace)
                ek_cuda_scratch_free(dev, workspace, nbytes);
        }
    }
    pthread_mutex_unlock(&device->lock);
    return rc;
}

int ek_cuda_dnn_run(ek_dev *dev, const ek_dnn_problem *problem, const ek_tensor *x,
                    const ek_tensor *w, const ek_tensor *y, const ek_tensor *bias)
{
    cudnnStatus_t status;
    ek_dnn_memory memory = {.tensors = {ek_tensor_address(x), ek_tensor_address(w),
                                        ek_tensor_address(y),
                                        bias ? ek_tensor_address(bias) : NULL}};
    int rc = dnn_issue(dev, problem, &memory, &status);
    if (rc <= 0 || status == CUDNN_STATUS_SUCCESS)
        return rc;
    char x_text[200], w_text[200], y_text[200], operands[640];
    snprintf(operands, sizeof operands, " of x %s, w %s and y %s", ek_tensor_text(x, x_text),
             ek_tensor_text(w, w_text), ek_tensor_text(y, y_text));
    return ek_cuda_dnn_failed(dev, dnn_names[problem->operation], operands, status);
}

int ek_cuda_dnn_attend(ek_dev *dev, const ek_dnn_problem *problem, void *const *tensors)
{
    cudnnStatus_t status;
    ek_dnn_memory memory = {.workspace = NULL};
    memcpy(memory.tensors, tensors, sizeof memory.tensors);
    int rc = dnn_issue(dev, problem, &memory, &status);
    return rc <= 0 || status == CUDNN_STATUS_SUCCESS
               ? rc
               : ek_cuda_dnn_failed(dev, dnn_names[problem->operation], "", status);
}

#else

int ek_cuda_dnn_supports(ek_dev *dev, const ek_dnn_problem *problem, int64_t *workspace)
{
    (void)dev, (void)problem, (void)workspace;
    return 0;
}

int ek_cuda_dnn_run(ek_dev *dev, const ek_dnn_problem *problem, const ek_tensor *x,
                    const ek_tensor *w, const ek_tensor *y, const ek_tensor *bias)
{
    (void)dev, (void)problem, (void)x, (void)w, (void)y, (void)bias;
    return 0;
}

int ek_cuda_dnn_attend(ek_dev *dev, const ek_dnn_problem *problem, void *const *tensors)
{
    (void)dev, (void)problem, (void)tensors;
    return 0;
}

void ek_cuda_dnn_close(ek_cuda_device *device)
{
    (void)device;
}

#endif
