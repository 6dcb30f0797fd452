/* nets.h: the networks whose training step is timed. train.py builds the same from torch. */
#ifndef BENCH_NETS_H
#define BENCH_NETS_H

#include <evenkeel/evenkeel.h>

typedef struct workload {
    const char *name;
    int64_t batch;
    int64_t input[3]; /* (C, H, W), or (features) */
    int input_dims;
    int64_t target[2]; /* (H, W), or nothing */
    int target_dims;
    int64_t classes;
    ek_module *(*network)(void);
    ek_module *(*criterion)(void);
} workload;

/* By name; NULL where there is none. */
const workload *workload_named(const char *name);

#endif
