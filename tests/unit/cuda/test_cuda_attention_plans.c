/* The plans that cuDNN makes for attention on GPUs that are only described: engine, tensor cores,
 * workspace. Skipped where cuDNN can't be opened. Where there is no driver either, a fake one takes
 * the code that cuDNN compiles. */
#include <dlfcn.h>

#include "dnn_setup.h"

#if defined(EK_DNN_WITH_PROPERTIES) && defined(FAKE_DRIVER)

enum { FORWARD, BACKWARD, DETERMINISTIC, OPERATIONS };
enum { NO_MASK, ROWS_BY_KEYS, EACH_HEAD, KEYS_ONLY };

/* As layers of GPT-2 are: heads lie side by side in rows of one projection. */
typedef struct layer {
    const char *what;
    int64_t batch, heads, groups, rows, keys, depth;
    int mask;
    bool causal, dropout;
    ek_dtype dtype;
} layer;

#define GPT2(depth) 8, 12, 12, 1024, 1024, depth
static const layer layers[] = {
    {"GPT-2", GPT2(64), NO_MASK, true, false, EK_BF16},
    {"GPT-2, dropout", GPT2(64), NO_MASK, true, true, EK_BF16},
    {"GPT-2, mask", GPT2(64), ROWS_BY_KEYS, false, false, EK_BF16},
    {"GPT-2, mask and dropout", GPT2(64), ROWS_BY_KEYS, false, true, EK_BF16},
    {"GPT-2 of 32 features", GPT2(32), NO_MASK, true, true, EK_BF16},
    {"GPT-2 of 128 features", GPT2(128), NO_MASK, true, true, EK_BF16},
    {"GPT-2 in f16", GPT2(64), NO_MASK, true, true, EK_F16},
    {"256 features", 2, 4, 4, 1024, 1024, 256, NO_MASK, true, false, EK_BF16},
    {"groups", 4, 16, 4, 512, 512, 128, NO_MASK, true, false, EK_BF16},
    {"groups and all", 4, 16, 4, 512, 512, 40, EACH_HEAD, true, true, EK_BF16},
    {"padding", 8, 8, 8, 500, 1000, 64, KEYS_ONLY, false, true, EK_BF16},
    {"odd sizes", 3, 8, 8, 1023, 777, 72, ROWS_BY_KEYS, false, true, EK_BF16},
};
enum { LAYERS = sizeof layers / sizeof *layers };

static void skip_without_cudnn(void)
{
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) &&
        !dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL)) {
        printf("%s\n", dlerror());
        exit(1);
    }
    if (ek_cudnn() && ek_cudnn()->cudnnGetVersion() >= 91600)
        return;
    printf("skipped: cuDNN cannot be used: %s\n", ek_cudnn() ? "too old" : ek_cudnn_reason());
    exit(77);
}

BEFORE_ALL(skip_without_cudnn)

static void problem_of_layer(const layer *l, int operation, ek_dnn_problem *p)
{
    const int64_t row = (l->heads + 2 * l->groups) * l->depth;
    *p = (ek_dnn_problem){.operation =
                              operation == FORWARD ? EK_DNN_ATTENTION : EK_DNN_ATTENTION_GRADIENT,
                          .dtype = l->dtype,
                          .alignment = 16,
                          .deterministic = operation == DETERMINISTIC,
                          .batch = l->batch,
                          .heads = l->heads,
                          .groups = l->groups,
                          .rows = l->rows,
                          .keys = l->keys,
                          .depth = l->depth,
                          .width = l->depth,
                          .causal = l->causal,
                          .drops = l->dropout};
    for (int at = 0; at < EK_DNN_MASK; at++) {
        const bool of_keys = at == EK_DNN_K || at == EK_DNN_V || at == EK_DNN_DK || at == EK_DNN_DV;
        const int64_t heads = of_keys ? l->groups : l->heads, rows = of_keys ? l->keys : l->rows;
        p->strides[at][2] = at <= EK_DNN_V ? row : heads * l->depth;
        p->strides[at][1] = l->depth;
        p->strides[at][0] = rows * p->strides[at][2];
    }
    if (l->mask == NO_MASK)
        return;
    p->mask_dtype = l->dtype;
    p->mask[0] = l->mask == ROWS_BY_KEYS ? 1 : l->batch;
    p->mask[1] = l->mask == EACH_HEAD ? l->heads : 1;
    p->mask[2] = l->mask == KEYS_ONLY ? 1 : l->rows;
    p->mask[3] = l->keys;
    for (int64_t d = 2, stride = l->keys; d >= 0; stride *= p->mask[d--])
        p->strides[EK_DNN_MASK][d] = stride;
}

/* Returns whether there is a plan, which is then checked. */
static bool check(const layer *l, int operation, cudnnBackendDescriptor_t properties,
                  const char *gpu)
{
    char text[EK_DNN_TEXT];
    ek_dnn_problem p;
    ek_dnn_plan plan;
    problem_of_layer(l, operation, &p);
    const int64_t rows = (l->rows + 127) / 128 * 128, keys = (l->keys + 127) / 128 * 128;
    const int64_t scores = 2 * l->batch * l->heads * rows * keys;
    const int64_t grouped =
        l->heads == l->groups ? 0 : 4 * l->batch * l->heads * l->keys * l->depth;
    const bool made = ek_dnn_plan_make(ek_cudnn(), &(const ek_dnn_target){.properties = properties},
                                       &p, (int64_t)1 << 30, &plan);
    ek_dnn_plan_text(&p, &plan, text);
    if (getenv("EVENKEEL_CUDA_PLANS"))
        printf("%s: %s: %s\n", gpu, l->what, text);
    if (!made)
        return false;
    if (!ek_dnn_plan_has(&plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
        ck_abort_msg("%s: without tensor cores: %s", l->what, text);
    const int64_t most = operation == FORWARD ? 0 : (operation == DETERMINISTIC) * scores + grouped;
    if (plan.workspace > most + most / 10 + (1 << 20))
        ck_abort_msg("%s: more than %lld bytes of workspace: %s", l->what, (long long)most, text);
    ek_dnn_plan_free(ek_cudnn(), &plan);
    return true;
}

TEST_LOOP(an_h200_has_engines_for_all, 0, LAYERS)
{
    cudnnBackendDescriptor_t properties = properties_of(ek_cudnn(), h200);
    ck_assert(properties != NULL);
    for (int operation = 0; operation < OPERATIONS; operation++)
        if (!check(&layers[_i], operation, properties, "H200"))
            ck_abort_msg("%s: no plan for operation %d", layers[_i].what, operation);
    (void)ek_cudnn()->cudnnBackendDestroyDescriptor(properties);
}

/* 256 features are too many for a B200's gradients. */
TEST_LOOP(a_b200_has_engines, 0, LAYERS / 3)
{
    const layer *l = &layers[3 * _i + 1];
    cudnnBackendDescriptor_t properties = properties_of(ek_cudnn(), b200);
    ck_assert(properties != NULL);
    for (int operation = 0; operation < DETERMINISTIC; operation++)
        if (check(l, operation, properties, "B200") != (l->depth <= 128 || operation == FORWARD))
            ck_abort_msg("%s: operation %d", l->what, operation);
    (void)ek_cudnn()->cudnnBackendDestroyDescriptor(properties);
}

/* What cuDNN refuses has no plan, and says so. */
TEST(refused_problems_have_no_plan)
{
    cudnnBackendDescriptor_t properties = properties_of(ek_cudnn(), h200);
    layer narrow = layers[0], single = layers[0];
    narrow.depth = 60;
    single.dtype = EK_F32;
    ck_assert(!check(&narrow, FORWARD, properties, "H200"));
    ck_assert(!check(&single, BACKWARD, properties, "H200"));
    (void)ek_cudnn()->cudnnBackendDestroyDescriptor(properties);
}

#else

static void skip(void)
{
    printf("skipped: this build has no cuDNN that takes described GPUs (9.8 or later)\n");
    exit(77);
}

BEFORE_ALL(skip)

#endif
