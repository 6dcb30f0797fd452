/* observed.h: a network whose replicas let their caller see their running means. */
#ifndef BROADCAST_BUFFERS_OBSERVED_H
#define BROADCAST_BUFFERS_OBSERVED_H

#include <evenkeel/evenkeel.h>

enum { DEVICES = 2, CHANNELS = 5 };

typedef float channel_means[CHANNELS];

/* What the replicas of the last forward showed. Each writes to places of its own. */
typedef struct buffer_view {
    ek_tensor *running_mean[DEVICES];  /* references: read on to see what becomes of them */
    channel_means inside[DEVICES];     /* running means at the start of the forward */
    channel_means batch_mean[DEVICES]; /* of the replica's chunk, as it is normalised */
} buffer_view;

/* A convolution of 3 channels to CHANNELS, batch normalisation, and the sum of all that comes out
 * (a scalar). Its replicas show themselves in *view where the replication callback is patched in.
 */
ek_module *observed_network(buffer_view *view);

/* The running means of all devices as they are now. */
int buffer_view_read(const buffer_view *view, channel_means means[DEVICES]);

void buffer_view_clear(buffer_view *view);

#endif
