/* Convolutions as cuDNN is asked for them, without a GPU: its descriptors check their attributes
 * when they are finalised, and plans can be made for a GPU that is only described. What needs cuDNN
 * passes where it can't be opened. */
#include "dnn_setup.h"

/* ---- problems ---- */

static const conv_case cases[] = {
    {"3x3", 2, 32, 64, 128, 1, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"odd sizes", 2, 3, 13, 7, 1, {9, 17}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"1x1", 2, 16, 256, 64, 1, {14, 14}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 0},
    {"1x1 stride 2", 2, 16, 64, 128, 1, {28, 28}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 0},
    {"three channels", 2, 8, 3, 32, 1, {224, 224}, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 0},
    {"one channel", 2, 8, 1, 32, 1, {28, 28}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 0},
    {"to one channel", 2, 64, 512, 1, 1, {4, 4}, {4, 4}, {1, 1}, {0, 0}, {1, 1}, 0},
    {"dilation", 2, 4, 64, 64, 1, {33, 33}, {3, 3}, {1, 1}, {6, 6}, {6, 6}, 0},
    {"groups", 2, 8, 64, 64, 4, {14, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"depthwise", 2, 8, 32, 32, 32, {28, 28}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"asymmetric", 2, 8, 16, 32, 1, {20, 12}, {5, 3}, {2, 1}, {2, 0}, {1, 2}, 0},
    {"last window left out", 2, 8, 16, 32, 1, {16, 16}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {"3-d", 3, 2, 16, 32, 1, {8, 16, 16}, {3, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

TEST(padding_follows_from_the_sizes)
{
    ek_dnn_problem problem;
    for (int i = 0; i < CASES; i++) {
        ck_assert(problem_of(&cases[i], EK_DNN_FORWARD, EK_F32, EK_CHANNELS_LAST, &problem));
        for (int d = 0; d < cases[i].dims; d++) {
            ck_assert_int_eq(problem.before[d], cases[i].padding[d]);
            ck_assert_int_eq(problem.after[d], cases[i].padding[d] - cases[i].fewer);
        }
    }
    /* The last row of x is not read: no padding says so. */
    conv_case c = cases[2];
    c.fewer = 1;
    ck_assert(!problem_of(&c, EK_DNN_FORWARD, EK_F32, EK_CHANNELS_LAST, &problem));
}

TEST(what_cudnn_is_not_asked_for)
{
    ek_dnn_problem problem;
    ck_assert(!problem_of(&cases[0], EK_DNN_FORWARD, EK_F64, EK_CHANNELS_LAST, &problem));
    ck_assert(!problem_of(&cases[0], EK_DNN_FORWARD, EK_I64, EK_CHANNELS_LAST, &problem));
}

TEST(flags_follow_the_modes)
{
    ek_dnn_problem problem;
    ek_allow_tf32_convolution(true);
    ek_use_deterministic_algorithms(true);
    ck_assert(problem_of(&cases[0], EK_DNN_FORWARD, EK_F32, EK_CHANNELS_LAST, &problem));
    ck_assert(problem.tf32 && problem.deterministic);
    ck_assert(problem_of(&cases[0], EK_DNN_FORWARD, EK_BF16, EK_CHANNELS_LAST, &problem));
    ck_assert(!problem.tf32);
    ek_allow_tf32_convolution(false);
    ek_use_deterministic_algorithms(false);
    ck_assert(problem_of(&cases[0], EK_DNN_FORWARD, EK_F32, EK_CHANNELS_LAST, &problem));
    ck_assert(!problem.tf32 && !problem.deterministic);
}

TEST(alignment_of_addresses)
{
    ck_assert_int_eq(ek_dnn_alignment((void *)64), 16);
    ck_assert_int_eq(ek_dnn_alignment((void *)24), 8);
    ck_assert_int_eq(ek_dnn_alignment((void *)68), 4);
    ck_assert_int_eq(ek_dnn_alignment((void *)70), 2);
}

#ifdef EK_HAVE_CUDNN

/* ---- descriptors ---- */

typedef struct variant {
    ek_dnn_operation operation;
    ek_dtype dtype;
    ek_memory_format format;
    bool bias; /* with a forward */
} variant;

enum { VARIANTS = 16 };

static variant variant_of(int i)
{
    static const ek_dnn_operation operations[] = {EK_DNN_FORWARD, EK_DNN_INPUT_GRADIENT,
                                                  EK_DNN_WEIGHT_GRADIENT, EK_DNN_FORWARD};
    return (variant){operations[i % 4], i / 4 % 2 ? EK_BF16 : EK_F32,
                     i / 8 ? EK_CONTIGUOUS : EK_CHANNELS_LAST, i % 4 == 3};
}

static const char *text_of(const conv_case *c, const variant *v)
{
    static const char *const operations[] = {"forward", "input gradient", "weight gradient"};
    static char text[120];
    snprintf(text, sizeof text, "%s, %s%s, %s, %s", c->what, operations[v->operation],
             v->bias ? " with a bias" : "", ek_dtype_name(v->dtype),
             v->format == EK_CONTIGUOUS ? "row-major" : "channels-last");
    return text;
}

static void ask(const conv_case *c, const variant *v, ek_dnn_problem *problem)
{
    ck_assert(problem_of(c, v->operation, v->dtype, v->format, problem));
    problem->bias = v->bias;
}

TEST_LOOP(descriptors_are_accepted, 0, CASES)
{
    const ek_cudnn_api *api = ek_cudnn();
    if (!api)
        return;
    for (int i = 0; i < VARIANTS; i++) {
        variant v = variant_of(i);
        ek_dnn_problem problem;
        ek_dnn_graph graph = {0};
        ask(&cases[_i], &v, &problem);
        cudnnStatus_t status = ek_dnn_graph_describe(api, &problem, &graph);
        if (status != CUDNN_STATUS_SUCCESS)
            ck_abort_msg("%s: %s", text_of(&cases[_i], &v), api->cudnnGetErrorString(status));
        ek_dnn_graph_free(api, &graph);
    }
}

/* cuDNN checks y's shape against x, w and the padding: so a wrong problem is seen. */
TEST(a_wrong_size_is_refused)
{
    const ek_cudnn_api *api = ek_cudnn();
    if (!api)
        return;
    for (int operation = 0; operation < 3; operation++) {
        ek_dnn_problem problem;
        ek_dnn_graph graph = {0};
        ck_assert(
            problem_of(&cases[0], (ek_dnn_operation)operation, EK_F32, EK_CHANNELS_LAST, &problem));
        problem.y[2]++;
        ck_assert(ek_dnn_graph_describe(api, &problem, &graph) != CUDNN_STATUS_SUCCESS);
        ek_dnn_graph_free(api, &graph);
    }
}

TEST(packs_are_accepted)
{
    const ek_cudnn_api *api = ek_cudnn();
    char memory[4096]; /* only the addresses count */
    if (!api)
        return;
    for (int with = 0; with < 4; with++) {
        const ek_dnn_memory addresses = {{memory, memory + 1024, memory + 2048,
                                          with & 1 ? memory + 3072 : NULL},
                                         with & 2 ? memory + 3584 : NULL};
        cudnnBackendDescriptor_t pack = NULL;
        ck_assert(ek_dnn_pack(api, &addresses, &pack) == CUDNN_STATUS_SUCCESS);
        ck_assert(api->cudnnBackendDestroyDescriptor(pack) == CUDNN_STATUS_SUCCESS);
    }
}

/* ---- engines ---- */

TEST(engines_are_chosen_by_precision)
{
    static const cudnnBackendNumericalNote_t tensor_core[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
    static const cudnnBackendNumericalNote_t arrival[] = {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP,
                                                          CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
    static const cudnnBackendNumericalNote_t narrow[] = {
        CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION};
    static const cudnnBackendNumericalNote_t down[] = {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};
    ek_dnn_problem f32 = {.dtype = EK_F32}, tf32 = {.dtype = EK_F32, .tf32 = 1};
    ek_dnn_problem bf16 = {.dtype = EK_BF16}, fixed = {.dtype = EK_F32, .deterministic = 1};
    ck_assert_int_eq(ek_dnn_notes_refuse(&f32, NULL, 0), EK_DNN_ALLOWED);
    ck_assert_int_eq(ek_dnn_notes_refuse(&f32, tensor_core, 1), EK_DNN_TENSOR_CORES);
    ck_assert_int_eq(ek_dnn_notes_refuse(&tf32, tensor_core, 1), EK_DNN_ALLOWED);
    ck_assert_int_eq(ek_dnn_notes_refuse(&bf16, tensor_core, 1), EK_DNN_ALLOWED);
    ck_assert_int_eq(ek_dnn_notes_refuse(&f32, arrival, 2), EK_DNN_ALLOWED);
    ck_assert_int_eq(ek_dnn_notes_refuse(&fixed, arrival, 2), EK_DNN_NONDETERMINISTIC);
    ck_assert_int_eq(ek_dnn_notes_refuse(&bf16, narrow, 1), EK_DNN_IMPRECISE);
    ck_assert_int_eq(ek_dnn_notes_refuse(&tf32, down, 1), EK_DNN_IMPRECISE);
}

#ifdef EK_DNN_WITH_PROPERTIES

/* Not more workspace than is allowed, repeatable if that is asked for. */
static void check_plans(const ek_cudnn_api *api, const ek_dnn_target *target, const conv_case *c,
                        const variant *v)
{
    ek_dnn_problem problem;
    ek_dnn_plan plan;
    ask(c, v, &problem);
    if (!ek_dnn_plan_make(api, target, &problem, INT64_MAX, &plan))
        ck_abort_msg("no plan for %s", text_of(c, v));
    int64_t workspace = plan.workspace;
    ek_dnn_plan_free(api, &plan);
    if (workspace > 0 && ek_dnn_plan_make(api, target, &problem, workspace / 2, &plan)) {
        if (plan.workspace > workspace / 2)
            ck_abort_msg("too much workspace: %s", text_of(c, v));
        ek_dnn_plan_free(api, &plan);
    }
    problem.deterministic = 1;
    if (!v->bias) /* engines that add one may want more; else it is added apart */
        problem.alignment = (int64_t)ek_dtype_size(v->dtype);
    if (!ek_dnn_plan_make(api, target, &problem, INT64_MAX, &plan))
        ck_abort_msg("no repeatable plan for %s", text_of(c, v));
    ek_dnn_plan_free(api, &plan);
}

TEST_LOOP(an_h100_has_plans, 0, CASES)
{
    const ek_cudnn_api *api = ek_cudnn();
    ek_dnn_target target = {0};
    if (api)
        target.properties = properties_of(api, h100);
    if (!target.properties)
        return;
    for (int i = 0; i < VARIANTS; i++) {
        variant v = variant_of(i);
        check_plans(api, &target, &cases[_i], &v);
    }
    (void)api->cudnnBackendDestroyDescriptor(target.properties);
}

#endif
#endif
