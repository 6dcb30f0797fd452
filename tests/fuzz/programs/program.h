/* program.h: a random training program as plain data.
 *
 * A program says which net is trained, with what, on which devices, for how many steps, and what
 * fails on the way. It is a record of integers: program.c names them, so that a program can be
 * written as text, read again, and made simpler field by field. Layers fit into any place of a net
 * (layers.h), so that each can be taken out. */
#ifndef EK_TESTS_FUZZ_PROGRAM_H
#define EK_TESTS_FUZZ_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A callback has all parameters of its type. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { MAX_DEVICES = 4, MAX_LAYERS = 10, MAX_STEPS = 5, WAYS = 2, PROGRAM_TEXT = 6000 };

/* ---- words: X(constant, text) ---- */

#define DTYPES(X) X(DTYPE_F64, "f64") X(DTYPE_F32, "f32")
#define INPUTS(X) X(INPUT_ONE, "one") X(INPUT_TWO, "two") X(INPUT_NESTED, "nested")
#define OUTPUTS(X) X(OUTPUT_ONE, "one") X(OUTPUT_PAIR, "pair") X(OUTPUT_DICT, "dict")
#define TASKS(X)                          \
    X(TASK_MSE, "mse")                    \
    X(TASK_CROSS_ENTROPY, "crossentropy") \
    X(TASK_NLL, "nll")                    \
    X(TASK_L1, "l1")                      \
    X(TASK_BCE, "bce")                    \
    X(TASK_WEIGHTED, "weighted")          \
    X(TASK_SAMPLES, "samples")            \
    X(TASK_CRITIC, "critic")
#define REDUCTIONS(X) X(REDUCE_MEAN, "mean") X(REDUCE_SUM, "sum") X(REDUCE_NONE, "none")
#define OPTIMIZERS(X)                 \
    X(OPTIMIZER_SGD, "sgd")           \
    X(OPTIMIZER_NESTEROV, "nesterov") \
    X(OPTIMIZER_DAMPENED, "dampened") \
    X(OPTIMIZER_ADAM, "adam")         \
    X(OPTIMIZER_AMSGRAD, "amsgrad")   \
    X(OPTIMIZER_ADAMW, "adamw")
#define SCHEDULES(X) X(SCHEDULE_NONE, "none") X(SCHEDULE_STEP, "step") X(SCHEDULE_COSINE, "cosine")
#define CLIPS(X) X(CLIP_NONE, "none") X(CLIP_NORM, "norm") X(CLIP_VALUE, "value")
#define JUDGES(X) X(JUDGE_ONE_DEVICE, "device") X(JUDGE_ITSELF, "itself")
#define WRAPPERS(X)                 \
    X(WRAPPER_BALANCED, "balanced") \
    X(WRAPPER_CLASSIC, "classic") X(WRAPPER_ALONE, "alone") X(WRAPPER_NONE, "plain")
#define SPLITS(X) X(SPLIT_CHUNK, "chunk") X(SPLIT_EVEN, "even") X(SPLIT_AUTO, "auto")
#define PLANS(X)               \
    X(PLAN_NONE, "none")       \
    X(PLAN_CHUNKS, "chunks")   \
    X(PLAN_WEIGHTS, "weights") \
    X(PLAN_FIRST, "first")     \
    X(PLAN_TEXT, "text")
#define GATHERS(X) X(GATHER_FIRST, "first") X(GATHER_LAST, "last") X(GATHER_CPU, "cpu")
#define LAYERS(X)                          \
    X(LAYER_LINEAR, "linear")              \
    X(LAYER_CONV, "conv")                  \
    X(LAYER_TRANSPOSE, "transpose")        \
    X(LAYER_BATCH_NORM, "batchnorm")       \
    X(LAYER_SYNC_NORM, "syncnorm")         \
    X(LAYER_LAYER_NORM, "layernorm")       \
    X(LAYER_GROUP_NORM, "groupnorm")       \
    X(LAYER_INSTANCE_NORM, "instancenorm") \
    X(LAYER_RELU, "relu")                  \
    X(LAYER_LEAKY_RELU, "leakyrelu")       \
    X(LAYER_SIGMOID, "sigmoid")            \
    X(LAYER_TANH, "tanh")                  \
    X(LAYER_DROPOUT, "dropout")            \
    X(LAYER_IDENTITY, "identity")          \
    X(LAYER_FLATTEN, "flatten")            \
    X(LAYER_MAX_POOL, "maxpool")           \
    X(LAYER_AVG_POOL, "avgpool")           \
    X(LAYER_ADAPTIVE_POOL, "adaptivepool") \
    X(LAYER_UPSAMPLE, "upsample")          \
    X(LAYER_GUARD, "guard")                \
    X(LAYER_OPS, "ops")                    \
    X(LAYER_MIX, "mix")                    \
    X(LAYER_SPARE, "spare")                \
    X(LAYER_WRONG, "wrong")
#define WRAPS(X)         \
    X(WRAP_NONE, "none") \
    X(WRAP_CHECKPOINT, "checkpoint") X(WRAP_RESIDUAL, "residual") X(WRAP_TIED, "tied")
#define STEPS(X)                     \
    X(STEP_TRAIN, "train")           \
    X(STEP_HAND, "hand")             \
    X(STEP_TWICE, "twice")           \
    X(STEP_ACCUMULATE, "accumulate") \
    X(STEP_SECOND, "second")         \
    X(STEP_LOADER, "loader")         \
    X(STEP_PENALTY, "penalty")
#define EVENTS(X)                     \
    X(EVENT_NONE, "none")             \
    X(EVENT_EVALUATE, "evaluate")     \
    X(EVENT_CHECKPOINT, "checkpoint") \
    X(EVENT_REPORT, "report")         \
    X(EVENT_FORWARD, "forward")       \
    X(EVENT_FIND_BATCH, "findbatch")  \
    X(EVENT_RATE, "rate")             \
    X(EVENT_HOLD, "hold")             \
    X(EVENT_TOUCH, "touch")
#define FAULTS(X)                     \
    X(FAULT_NONE, "none")             \
    X(FAULT_FORWARD, "forward")       \
    X(FAULT_BACKWARD, "backward")     \
    X(FAULT_SILENT, "silent")         \
    X(FAULT_CAPACITY, "capacity")     \
    X(FAULT_ALLOCATION, "allocation") \
    X(FAULT_CALL, "call")             \
    X(FAULT_FILE, "file")
#define MOMENTS(X) X(DURING_STEP, "step") X(DURING_EVENT, "event")

#define WORD_CONSTANT(constant, text) constant,
enum { DTYPES(WORD_CONSTANT) };
enum { INPUTS(WORD_CONSTANT) };
enum { OUTPUTS(WORD_CONSTANT) };
enum { TASKS(WORD_CONSTANT) TASK_COUNT };
enum { REDUCTIONS(WORD_CONSTANT) };
enum { OPTIMIZERS(WORD_CONSTANT) OPTIMIZER_COUNT };
enum { SCHEDULES(WORD_CONSTANT) };
enum { CLIPS(WORD_CONSTANT) };
enum { JUDGES(WORD_CONSTANT) };
enum { WRAPPERS(WORD_CONSTANT) };
enum { SPLITS(WORD_CONSTANT) };
enum { PLANS(WORD_CONSTANT) };
enum { GATHERS(WORD_CONSTANT) };
enum { LAYERS(WORD_CONSTANT) LAYER_COUNT };
enum { WRAPS(WORD_CONSTANT) };
enum { STEPS(WORD_CONSTANT) STEP_COUNT };
enum { EVENTS(WORD_CONSTANT) EVENT_COUNT };
enum { FAULTS(WORD_CONSTANT) FAULT_COUNT };
enum { MOMENTS(WORD_CONSTANT) };
#undef WORD_CONSTANT

/* A row of a switch that gives what a word stands for. */
#define CASE_IS(label, ...) \
    case label:             \
        return __VA_ARGS__

/* ---- records ---- */

/* Devices and how the work is divided over them. */
typedef struct way {
    int wrapper;
    int count;           /* of devices */
    int on[MAX_DEVICES]; /* which: the first `count` */
    int split, goal;     /* goal: an ek_plan_goal */
    int plan, shares[MAX_DEVICES];
    int shard;   /* an ek_shard_policy */
    int offload; /* an ek_offload_policy */
    int stats;   /* an ek_running_stats */
    int own;     /* replicas keep their buffers: broadcast_buffers is off */
    int gather;  /* where classic outputs meet */
    int patched; /* ek_patch_replication_callback */
    int mean_of_means;
    int micro; /* batches of a step; 0 and 1: whole */
} way;

/* What width, size and variant mean depends on the kind and on where the layer lands. */
typedef struct layer {
    int kind, width, size, variant;
    int wrap;
    int frozen; /* its parameters require no gradient */
} layer;

typedef struct step {
    int batch; /* samples */
    int how;
    int event; /* after the step */
    int fault, during;
    int at; /* any number: which device fails, how many bytes are left, which allocation fails */
} step;

typedef struct program {
    int seed; /* of parameters and batches */
    int devices, slow;
    int dtype, autocast;
    int rank, channels, size; /* of a sample: channels, then `rank` dimensions */
    int input, output;
    int dense; /* a target for every position of the output */
    int task, classes, reduction;
    int weighted, ignored, smoothing;
    int penalty, critic; /* an ek_penalty_kind and an ek_gan_loss_kind */
    int optimizer, maximize, groups, schedule, clip;
    int plain_norm; /* batch normalisation of each replica by itself */
    int judge;
    int build_fault; /* 0, or which allocation fails while all is built */
    int order;       /* of freeing */
    way ways[WAYS];  /* the second after a checkpoint */
    int layer_count, step_count;
    layer layers[MAX_LAYERS];
    step steps[MAX_STEPS];
} program;

/* ---- fields ---- */

/* `count` integers at `offset` of a record. The simplest values are simplest + slope * index. */
typedef struct field {
    const char *name;
    size_t offset;
    int count;
    int simplest, slope;
    int low, high;
    const char *const *words; /* of the values from 0 on; NULL: numbers */
} field;

extern const field program_fields[], way_fields[], layer_fields[],
    step_fields[]; /* name NULL ends */

static inline int *field_values(const field *f, void *record)
{
    return (int *)(void *)((char *)record + f->offset);
}

const char *layer_word(int kind);
const char *step_word(int how);
const char *fault_word(int fault);

/* ---- programs ---- */

typedef struct draw_options {
    bool faults;  /* draw faults at all */
    bool planted; /* a layer that is wrong on the second device */
} draw_options;

/* A function of the seed and the options alone. */
void program_draw(program *p, uint64_t seed, const draw_options *options);

/* Removes contradictions, so that any change of a field leaves a program that can be run. */
void program_settle(program *p);

/* As text on one line, fields at their simplest values left out. Returns `text`. */
char *program_write(const program *p, char text[PROGRAM_TEXT]);
/* Reads that; false with what is wrong with it on stderr. */
bool program_read(program *p, const char *text);

/* Some replica sees the batch as a whole, so that parts of a batch give other numbers. */
bool program_sees_batch(const program *p);

#endif
