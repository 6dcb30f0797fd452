/* nets.h: the networks whose training step is timed. nets.py has PyTorch's twins of them. */
#ifndef BENCH_NETS_H
#define BENCH_NETS_H

#include <evenkeel/evenkeel.h>

/* One training: the objects of which `loss` computes the loss. */
typedef struct training {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *input, *target;
    ek_tensor *(*loss)(const struct training *job);
    bool bf16;
    bool clips; /* true if gradients are clipped to a norm of 1 */
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
    bool bf16;        /* true if forward and loss run under autocast */
    bool tf32;        /* true if GPUs may round f32 products and convolutions to TF32 */
    bool defaults;    /* true if the library's switches of precision are left alone */
    bool clips;       /* as in `training` */
    bool fast;        /* ek_allow_fast_convolution */
    bool distributed; /* true if even one rank uses ek_distributed_data_parallel */
} workload;

/* "NET[-bf16|-tf32|-fast|-default][-adam][-clip][@BATCH[xLENGTH]]": the net, with the precision,
 * the optimizer Adam, clipping, the batch and the length of sequences if the spelling has them.
 * Returns false if there is no such net. */
bool workload_named(const char *spelling, workload *load);
/* Writes "mlp|mnist|..." to `text`. */
void workload_names(char *text, size_t nbytes);

#endif
