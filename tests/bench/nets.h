/* nets.h: the networks whose training step is timed. nets.py builds the same from torch. */
#ifndef BENCH_NETS_H
#define BENCH_NETS_H

#include <evenkeel/evenkeel.h>

/* One job: what a workload computes its loss of. */
typedef struct training {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *input, *target;
    ek_tensor *(*loss)(const struct training *job);
    bool bf16;
    bool clips; /* gradients to a norm of 1 */
} training;

typedef struct workload {
    const char *name;
    int64_t batch;
    int64_t input[3]; /* (C, H, W), or (features) */
    int input_dims;
    int64_t target[3]; /* (H, W), or nothing */
    int target_dims;
    int64_t classes; /* 0: targets are real numbers */
    ek_module *(*network)(void);
    ek_module *(*criterion)(void);
    ek_tensor *(*loss)(const training *job);
    ek_optimizer *(*optimizer)(ek_module *model);
    int64_t tokens;   /* inputs are whole numbers below it; 0: real numbers */
    bool bf16;        /* forward and loss under autocast */
    bool tf32;        /* products and convolutions of f32 may round to tf32, where a GPU can */
    bool defaults;    /* convolutions alone may, and cuDNN's algorithms are not timed */
    bool clips;       /* gradients to a norm of 1 */
    bool fast;        /* ek_allow_fast_convolution */
    bool distributed; /* for several ranks, also if there is one */
} workload;

/* "NET[-bf16|-tf32|-fast|-default][-adam][-clip][@BATCH[xLENGTH]]": the net, with the precision,
 * the optimizer Adam, clipping, the batch and the length of sequences if the spelling has them.
 * Returns false if there is no such net. */
bool workload_named(const char *spelling, workload *load);
/* Writes "mlp|mnist|..." to `text`. */
void workload_names(char *text, size_t nbytes);

#endif
