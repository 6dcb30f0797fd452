/* nets.h: the networks whose training step is timed. train.py builds the same from torch. */
#ifndef BENCH_NETS_H
#define BENCH_NETS_H

#include <evenkeel/evenkeel.h>

/* One job: what a workload computes its loss of. */
typedef struct training {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *input, *target;
    ek_tensor *(*loss)(const struct training *job);
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
} workload;

/* "NET[-bf16][@BATCH]": the net, with that batch if it is said, under autocast to bf16 if that is
 * said. False where there is none. */
bool workload_named(const char *spelling, workload *load, bool *bf16);
/* Writes "mlp|mnist|..." to `text`. */
void workload_names(char *text, size_t nbytes);

#endif
