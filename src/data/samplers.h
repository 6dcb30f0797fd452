/* samplers.h: what the library's samplers share. */
#ifndef EK_DATA_SAMPLERS_H
#define EK_DATA_SAMPLERS_H

#include "evenkeel/sampler.h"

/* The library's own samplers of samples begin with this. What their passes hold lies in
 * [low, high): so a state that was tampered with is noticed (sampler_state.c). */
typedef struct ek_ranged_sampler {
    ek_sampler sampler;
    int64_t low, high;
} ek_ranged_sampler;

extern const ek_sampler_type ek_sequential_type, ek_random_type, ek_subset_random_type,
    ek_weighted_random_type, ek_distributed_type, ek_distributed_inference_type,
    ek_random_identity_type, ek_distributed_random_identity_type;

/* Room for `count` samples in all. */
int ek_pass_reserve(ek_pass *pass, int64_t count);

/* 0, or the error that stands for a NULL sampler. */
int ek_sampler_given(const ek_sampler *sampler, const char *function);

/* 0, or EK_E_INVALID if `rank` is none of `num_replicas` ranks. */
int ek_sampler_check_rank(int num_replicas, int rank, const char *function);

#endif
