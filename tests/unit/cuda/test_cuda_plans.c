/* The plans that cuDNN makes for the convolutions of common networks on a GPU that is only
 * described: the order of memory, tensor cores, workspace. Skipped where cuDNN can't be opened. */
#include "dnn_setup.h"

#ifdef EK_DNN_WITH_PROPERTIES

enum { FEW = 1 };

typedef struct layer {
    conv_case c;
    int flags; /* FEW: channels, which may do without tensor cores */
} layer;

/* Square images. */
#define LAYER(what, n, c, o, groups, size, window, stride, padding, flags) \
    {                                                                      \
        {what,                                                             \
         2,                                                                \
         n,                                                                \
         c,                                                                \
         o,                                                                \
         groups,                                                           \
         {size, size},                                                     \
         {window, window},                                                 \
         {stride, stride},                                                 \
         {padding, padding},                                               \
         {1, 1},                                                           \
         0},                                                               \
            flags                                                          \
    }

static const layer layers[] = {
    LAYER("ResNet-18, first", 256, 3, 64, 1, 32, 3, 1, 1, FEW),
    LAYER("ResNet-18, 64", 256, 64, 64, 1, 32, 3, 1, 1, 0),
    LAYER("ResNet-18, 64 to 128", 256, 64, 128, 1, 32, 3, 2, 1, 0),
    LAYER("ResNet-18, shortcut to 128", 256, 64, 128, 1, 32, 1, 2, 0, 0),
    LAYER("ResNet-18, 128", 256, 128, 128, 1, 16, 3, 1, 1, 0),
    LAYER("ResNet-18, 128 to 256", 256, 128, 256, 1, 16, 3, 2, 1, 0),
    LAYER("ResNet-18, shortcut to 256", 256, 128, 256, 1, 16, 1, 2, 0, 0),
    LAYER("ResNet-18, 256", 256, 256, 256, 1, 8, 3, 1, 1, 0),
    LAYER("ResNet-18, 256 to 512", 256, 256, 512, 1, 8, 3, 2, 1, 0),
    LAYER("ResNet-18, shortcut to 512", 256, 256, 512, 1, 8, 1, 2, 0, 0),
    LAYER("ResNet-18, 512", 256, 512, 512, 1, 4, 3, 1, 1, 0),
    LAYER("ResNet-50, first", 32, 3, 64, 1, 224, 7, 2, 3, FEW),
    LAYER("ResNet-50, 64 to 64, 1x1", 32, 64, 64, 1, 56, 1, 1, 0, 0),
    LAYER("ResNet-50, 64 to 256, 1x1", 32, 64, 256, 1, 56, 1, 1, 0, 0),
    LAYER("ResNet-50, 256 to 64, 1x1", 32, 256, 64, 1, 56, 1, 1, 0, 0),
    LAYER("ResNet-50, 64", 32, 64, 64, 1, 56, 3, 1, 1, 0),
    LAYER("ResNet-50, 128, stride 2", 32, 128, 128, 1, 56, 3, 2, 1, 0),
    LAYER("ResNet-50, shortcut to 512", 32, 256, 512, 1, 56, 1, 2, 0, 0),
    LAYER("ResNet-50, 512 to 1024, 1x1 stride 2", 32, 512, 1024, 1, 28, 1, 2, 0, 0),
    LAYER("ResNet-50, 256", 32, 256, 256, 1, 14, 3, 1, 1, 0),
    LAYER("ResNet-50, 512 to 2048, 1x1", 32, 512, 2048, 1, 7, 1, 1, 0, 0),
    LAYER("ResNet-50, 512", 32, 512, 512, 1, 7, 3, 1, 1, 0),
    LAYER("DCGAN, critic's first", 64, 3, 64, 1, 64, 4, 2, 1, FEW),
    LAYER("DCGAN, 64 to 128", 64, 64, 128, 1, 32, 4, 2, 1, 0),
    LAYER("DCGAN, 128 to 256", 64, 128, 256, 1, 16, 4, 2, 1, 0),
    LAYER("DCGAN, 256 to 512", 64, 256, 512, 1, 8, 4, 2, 1, 0),
    LAYER("DCGAN, to one score", 64, 512, 1, 1, 4, 4, 1, 0, FEW),
    LAYER("U-Net, first", 8, 3, 64, 1, 128, 3, 1, 1, FEW),
    LAYER("U-Net, 64", 8, 64, 64, 1, 128, 3, 1, 1, 0),
    LAYER("U-Net, 128 to 64", 8, 128, 64, 1, 128, 3, 1, 1, 0),
    LAYER("U-Net, 512", 8, 512, 512, 1, 16, 3, 1, 1, 0),
    LAYER("U-Net, up", 8, 64, 128, 1, 128, 2, 2, 0, 0),
    LAYER("U-Net, classes", 8, 64, 11, 1, 128, 1, 1, 0, FEW),
    LAYER("MNIST, first", 64, 1, 32, 1, 28, 3, 1, 0, FEW),
    LAYER("MNIST, second", 64, 32, 64, 1, 26, 3, 1, 0, 0),
    LAYER("groups of 16", 32, 64, 64, 4, 14, 3, 1, 1, FEW),
    LAYER("depthwise", 32, 64, 64, 64, 28, 3, 1, 1, FEW),
    {{"one dimension", 2, 32, 64, 128, 1, {1, 256}, {1, 5}, {1, 2}, {0, 2}, {1, 1}, 0}, 0},
};
enum { LAYERS = sizeof layers / sizeof *layers };

static cudnnBackendDescriptor_t properties;

static void describe(void)
{
    properties = properties_of(ek_cudnn(), h200);
    ck_assert_msg(properties != NULL, "cuDNN does not take the description of the GPU");
}

static void forget(void)
{
    (void)ek_cudnn()->cudnnBackendDestroyDescriptor(properties);
}

FIXTURE(describe, forget)

static void skip_without_cudnn(void)
{
    if (ek_cudnn())
        return;
    printf("skipped: cuDNN cannot be used: %s\n", ek_cudnn_reason());
    exit(77);
}

BEFORE_ALL(skip_without_cudnn)

static void plan_in(const layer *l, ek_dtype dtype, ek_memory_format format, int operation,
                    bool bias, ek_dnn_problem *problem, ek_dnn_plan *plan)
{
    ck_assert(problem_of(&l->c, (ek_dnn_operation)operation, dtype, format, problem));
    problem->bias = bias;
    const ek_dnn_target target = {.properties = properties};
    if (!ek_dnn_plan_make(ek_cudnn(), &target, problem, (int64_t)1 << 30, plan))
        ck_abort_msg("%s: no plan", l->c.what);
}

/* Fills a problem as it is asked for in f32, TF32 or bf16 (0, 1, 2), and its plan: in the order of
 * the images, unless fewer bytes are copied in channels-last order. */
static void plan_of(const layer *l, int precision, int operation, bool bias,
                    ek_dnn_problem *problem, ek_dnn_plan *plan)
{
    const ek_dtype dtype = precision == 2 ? EK_BF16 : EK_F32;
    ek_dnn_problem last;
    ek_dnn_plan other;
    ek_allow_tf32_convolution(precision == 1);
    ck_assert_int_eq(ek_dnn_format(dtype), precision == 0 ? EK_CONTIGUOUS : EK_CHANNELS_LAST);
    plan_in(l, dtype, ek_dnn_format(dtype), operation, bias, problem, plan);
    if (precision > 0)
        return;
    plan_in(l, dtype, EK_CHANNELS_LAST, operation, bias, &last, &other);
    if (ek_dnn_copied(problem, plan->workspace) > ek_dnn_copied(&last, other.workspace)) {
        ek_dnn_plan_free(ek_cudnn(), plan);
        *problem = last;
        *plan = other;
    } else {
        ek_dnn_plan_free(ek_cudnn(), &other);
    }
}

/* Bytes of all three tensors. */
static int64_t bytes_of(const ek_dnn_problem *p)
{
    int64_t counts[3] = {1, 1, 1};
    for (int d = 0; d < 4; d++) {
        counts[0] *= p->x[d];
        counts[1] *= p->w[d];
        counts[2] *= p->y[d];
    }
    return (counts[0] + counts[1] + counts[2]) * (p->dtype == EK_BF16 ? 2 : 4);
}

static void check_plan(const layer *l, const ek_dnn_problem *p, const ek_dnn_plan *plan)
{
    char text[EK_DNN_TEXT];
    const bool narrow = p->tf32 || p->dtype == EK_BF16;
    const bool cores = ek_dnn_plan_has(plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    ek_dnn_plan_text(p, plan, text);
    if (narrow ? !cores && !(l->flags & FEW) : cores)
        ck_abort_msg("%s: %s tensor cores: %s", l->c.what, cores ? "with" : "without", text);
    if (ek_dnn_plan_has(plan, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) ||
        ek_dnn_plan_has(plan, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) ||
        (p->deterministic && ek_dnn_plan_has(plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)))
        ck_abort_msg("%s: imprecise or not repeatable: %s", l->c.what, text);
    /* Copies in another order would need room for the tensors: in f32 there are none, because the
     * order is chosen so. Few channels are padded. */
    const int64_t most = l->flags & FEW ? 5 * bytes_of(p) : narrow ? bytes_of(p) + (1 << 20) : 0;
    if (!p->deterministic && plan->workspace > most)
        ck_abort_msg("%s: more than %lld bytes of workspace: %s", l->c.what, (long long)most, text);
}

/* Forward, both gradients, and forward with a bias, in f32, TF32 and bf16. */
TEST_LOOP(layers_of_networks, 0, 3)
{
    for (int i = 0; i < 4 * LAYERS; i++) {
        const layer *l = &layers[i / 4];
        ek_dnn_problem problem;
        ek_dnn_plan plan;
        plan_of(l, _i, i % 4 % 3, i % 4 == 3, &problem, &plan);
        /* If the bias costs the tensor cores, it is added apart. */
        if (!problem.bias || _i == 0 || ek_dnn_plan_has(&plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
            check_plan(l, &problem, &plan);
        ek_dnn_plan_free(ek_cudnn(), &plan);
    }
}

TEST_LOOP(repeatable_layers, 0, 3)
{
    ek_use_deterministic_algorithms(true);
    for (int i = 0; i < 3 * LAYERS; i++) {
        ek_dnn_problem problem;
        ek_dnn_plan plan;
        plan_of(&layers[i / 3], _i, i % 3, false, &problem, &plan);
        ck_assert(problem.deterministic);
        check_plan(&layers[i / 3], &problem, &plan);
        ek_dnn_plan_free(ek_cudnn(), &plan);
    }
}

/* The engines for weight gradients of many channels read channels-last tensors only. Everything
 * else is computed in f32 as row-major images lie. */
TEST(orders_of_memory)
{
    for (int i = 0; i < 3 * LAYERS; i++) {
        const layer *l = &layers[i / 3];
        ek_dnn_problem problem, rows;
        ek_dnn_plan plan, kept;
        plan_of(l, 0, i % 3, false, &problem, &plan);
        plan_in(l, EK_F32, EK_CONTIGUOUS, i % 3, false, &rows, &kept);
        const bool last = problem.format == EK_CHANNELS_LAST;
        if (last && getenv("EVENKEEL_CUDA_PLANS"))
            printf("%-40s %d engine %2d %9.1f MB workspace, %9.1f MB copied -> engine %2d %9.1f MB "
                   "workspace, %9.1f MB copied\n",
                   l->c.what, i % 3, (int)kept.engine, (double)kept.workspace / 1e6,
                   (double)ek_dnn_copied(&rows, kept.workspace) / 1e6, (int)plan.engine,
                   (double)plan.workspace / 1e6,
                   (double)ek_dnn_copied(&problem, plan.workspace) / 1e6);
        if (last && i % 3 != EK_DNN_WEIGHT_GRADIENT && !(l->flags & FEW))
            ck_abort_msg("%s: channels-last in operation %d", l->c.what, i % 3);
        if (last && kept.workspace < bytes_of(&rows) / 2)
            ck_abort_msg("%s: channels-last against little workspace", l->c.what);
        ek_dnn_plan_free(ek_cudnn(), &plan);
        ek_dnn_plan_free(ek_cudnn(), &kept);
    }
    ek_dnn_problem problem;
    ek_dnn_plan plan;
    plan_of(&layers[10], 0, EK_DNN_WEIGHT_GRADIENT, false, &problem, &plan); /* 512 channels */
    ck_assert_int_eq(problem.format, EK_CHANNELS_LAST);
    ck_assert_int_eq(plan.workspace, 0);
    ek_dnn_plan_free(ek_cudnn(), &plan);
}

/* What is refused is counted and told, and so are times. */
TEST(plans_tell_of_themselves)
{
    ek_dnn_problem problem;
    ek_dnn_plan plan;
    char text[EK_DNN_TEXT];
    plan_of(&layers[1], 0, EK_DNN_FORWARD, false, &problem, &plan);
    ek_dnn_plan_text(&problem, &plan, text);
    ck_assert_msg(strstr(text, "convolution f32 row-major x 256x64x32x32 w 64x64x3x3 y "
                               "256x64x32x32 stride 1x1 padding 1x1 dilation 1x1: engine ") == text,
                  "%s", text);
    ck_assert_msg(strstr(text, ", workspace ") != NULL, "%s", text);
    ck_assert_int_gt(plan.refused[EK_DNN_TENSOR_CORES], 0);
    plan.timed = 2;
    plan.times[0] = (ek_dnn_time){.engine = 70, .milliseconds = 0.25F};
    plan.times[1] = (ek_dnn_time){.engine = 7, .milliseconds = -1};
    ek_dnn_plan_text(&problem, &plan, text);
    ck_assert_msg(strstr(text, "; timed: engine 70 0.250 ms, engine 7 failed") != NULL, "%s", text);
    ek_dnn_plan_free(ek_cudnn(), &plan);
    problem.alignment = 1;
    problem.x[1] = 65; /* not what the weight has: nothing computes that */
    const ek_dnn_target target = {.properties = properties};
    ck_assert(!ek_dnn_plan_make(ek_cudnn(), &target, &problem, 0, &plan));
    ck_assert(strstr(ek_dnn_plan_text(&problem, &plan, text), ": no engine") != NULL);
}

#else

static void skip(void)
{
    printf("skipped: this build has no cuDNN that takes described GPUs (9.8 or later)\n");
    exit(77);
}

BEFORE_ALL(skip)

#endif
