/* exact.h: small trainings, in which N ranks must compute what one process computes. Sample i is
 * the same on every rank, and so are parameters. */
#ifndef EK_TESTS_KIT_EXACT_H
#define EK_TESTS_KIT_EXACT_H

#include "evenkeel/evenkeel.h"

typedef enum exact_task {
    EXACT_MLP,
    EXACT_CONVOLUTIONS, /* with synchronised batch normalisation, as in the tasks below */
    EXACT_SEGMENTATION, /* many targets are ignored, among them all of the first two samples */
    EXACT_SEQUENCES,    /* CTC: targets and lengths in a list, the batch in dimension 1 */
    EXACT_CRITIC,       /* WGAN-GP: a penalty on the critic's gradient */
    EXACT_TIED,         /* two layers have one weight, and a layer was replaced */
    EXACT_TASKS
} exact_task;

const char *exact_name(exact_task task);

/* How the devices of one rank share its batch. */
typedef enum exact_way {
    EXACT_ONE_DEVICE,
    EXACT_CLASSIC,  /* ek_data_parallel, made by the wrapper of ranks */
    EXACT_BALANCED, /* the balanced model and criterion */
    EXACT_WAYS
} exact_way;

/* A module and its criteria. */
typedef struct exact_job {
    exact_task task;
    ek_dtype dtype;
    ek_module *model;
    ek_module *criteria[2]; /* the second is the critic's for fake samples, else NULL */
} exact_job;

/* Makes three linear layers, of which the first two have one weight, and the last was replaced.
 * NULL with an error. */
ek_module *exact_tied_new(int inputs, int outputs);

/* Converts a module to f64 and fills its parameters, the same way each time. */
int exact_fill(ek_module *module);

/* Makes the job's modules without wrappers. All are NULL with an error. */
exact_job exact_make(exact_task task, ek_dtype dtype);
/* Puts the modules into the wrappers of ranks. If `way` isn't EXACT_ONE_DEVICE, two host devices
 * share a rank's batch. */
int exact_wrap(exact_job *job, exact_way way, ek_process_group *group);
/* exact_wrap on these devices. An empty list: on the device of the module. */
int exact_wrap_devices(exact_job *job, exact_way way, ek_device_list devices,
                       ek_process_group *group);
void exact_free(exact_job *job);

/* Returns the loss of the samples [first, first + count), in the scope. */
ek_tensor *exact_loss(const exact_job *job, int64_t first, int64_t count);

/* Returns the loss, the model's gradients and then its running statistics, one after another, on
 * cpu and in the scope. NULL with an error. */
ek_tensor *exact_outcome(const exact_job *job, ek_tensor *loss);

/* Return the gradients alone, or the parameters. */
ek_tensor *exact_gradients(const exact_job *job);
ek_tensor *exact_parameters(const exact_job *job);

/* Returns |a - b| / |b|, or NaN if they can't be compared. */
double exact_distance(const ek_tensor *a, const ek_tensor *b);

/* Returns a hash of the bytes of gradients, parameters and buffers; 0 with an error. */
uint64_t exact_bits(ek_module *model);

#endif
