/* train.h: two training steps under one policy for buffers. */
#ifndef BROADCAST_BUFFERS_TRAIN_H
#define BROADCAST_BUFFERS_TRAIN_H

#include "broadcast_buffers/observed.h"

typedef enum buffer_policy {
    POLICY_BROADCAST,    /* device 0's buffers are sent at every forward */
    POLICY_KEPT,         /* each device goes on with its own */
    POLICY_SYNCHRONISED, /* statistics of the whole batch */
    POLICY_EXTRA,        /* as the first, and one more forward, not used, before backward */
    POLICIES
} buffer_policy;

/* The words of the command line, "all" after the policies' names and NULL at the end, and a line of
 * explanation for each policy. */
extern const char *const policy_names[POLICIES + 2];
extern const char *const policy_lines[POLICIES];

enum { MOST_LOOKS = 7 };

/* The running means of each device, again and again. */
typedef struct train_result {
    int looks;
    const char *moments[MOST_LOOKS]; /* "inside the first forward" */
    channel_means means[MOST_LOOKS][DEVICES];
    channel_means batch_mean[DEVICES]; /* of each device's chunk in the last forward */
    double loss;                       /* of the first forward */
} train_result;

/* Returns 0 or a negative status. */
int train_twice(buffer_policy policy, const ek_device_list *devices, uint64_t seed,
                train_result *result);

#endif
