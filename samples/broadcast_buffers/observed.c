/* observed.c: a user-written module with a replication callback. */
#include "broadcast_buffers/observed.h"

typedef struct observed {
    ek_module module;
    ek_module *conv, *norm;
    buffer_view *view; /* shared by all replicas, as plain members are */
    int index;         /* of the replica */
} observed;

/* Called on every replica before any runs: it learns which one it is, and leaves a handle on its
 * running mean, whose memory goes on when the replica's struct is gone. */
static int observed_replicated(ek_module *replica, ek_replication *replication)
{
    observed *self = (observed *)replica;
    ek_tensor *mean = ek_module_tensor(self->norm, "running_mean");

    if (!mean || replication->count > DEVICES)
        return mean ? ek_error(EK_E_USER, "there is room for %d replicas", DEVICES)
                    : ek_error_status();
    self->index = replication->index;
    ek_release(self->view->running_mean[self->index]);
    self->view->running_mean[self->index] = ek_keep(mean);
    return 0;
}

/* The mean of each channel of x (N, C, H, W). */
static int read_channel_means(ek_tensor *x, channel_means means)
{
    ek_tensor *mean = ek_mean(ek_detach(x), .dims = {0, 2, 3}, .dim_count = 3);

    return mean ? ek_to_data(mean, means, sizeof(channel_means)) : ek_error_status();
}

static ek_value observed_forward(ek_module *module, const ek_args *args)
{
    observed *self = (observed *)module;
    buffer_view *view = self->view;
    ek_tensor *mean = ek_module_tensor(self->norm, "running_mean");

    if (ek_to_data(mean, view->inside[self->index], sizeof(channel_means)) < 0)
        return ek_value_error();
    ek_tensor *x = ek_apply(self->conv, ek_arg_tensor(args, 0));
    if (!x || read_channel_means(x, view->batch_mean[self->index]) < 0)
        return ek_value_error();
    return ek_value_of_tensor(ek_sum(ek_apply(self->norm, x)));
}

static const ek_module_type observed_type = {
    .name = "observed",
    .size = sizeof(observed),
    .forward = observed_forward,
    .replicated = observed_replicated,
};

ek_module *observed_network(buffer_view *view)
{
    observed *self = (observed *)ek_module_new(&observed_type);

    if (!self)
        return NULL;
    self->view = view;
    ek_register_module(&self->module, "conv", &self->conv, ek_conv2d(3, CHANNELS, 3, .padding = 1));
    ek_register_module(&self->module, "norm", &self->norm, ek_batch_norm2d(CHANNELS));
    return ek_module_finish(&self->module);
}

int buffer_view_read(const buffer_view *view, channel_means means[DEVICES])
{
    for (int d = 0; d < DEVICES; d++)
        if (ek_to_data(view->running_mean[d], means[d], sizeof(means[d])) < 0)
            return ek_error_status();
    return 0;
}

void buffer_view_clear(buffer_view *view)
{
    for (int d = 0; d < DEVICES; d++)
        ek_release(view->running_mean[d]);
    *view = (buffer_view){0};
}
