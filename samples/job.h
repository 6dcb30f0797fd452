/* job.h: a network with all that trains it, on one device or several: the batches it is fed with,
 * the ways to train, its steps, each device's share of a batch, and what results say of it. */
#ifndef SAMPLES_JOB_H
#define SAMPLES_JOB_H

#include "results.h"
#include "world.h"

/* ---- pictures and batches ---- */

/* Takes over `pictures` and returns them if they are of these sizes, else NULL with EK_E_SHAPE;
 * `directory` is for the sentence. */
ek_dataset *pictures_checked(ek_dataset *pictures, const char *directory, ek_shape wanted);
/* What --data must hold, and where that comes from; for the directory. */
#define PICTURES_HINT                                                   \
    "--data %s must hold Fashion-MNIST's four files; Debian's package " \
    "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist"
/* 0, ..., count - 1 in an order of its own in each pass, one permutation of the generator's a pass.
 */
ek_sampler *shuffled_sampler(int64_t count, ek_generator *generator);
/* Collates samples (input, target) on cpu; inputs become of the dtype that `dtype`
 * points to: an ek_dtype, as an option of a program is, an int. */
ek_value collate_in_dtype(const ek_value *samples, int64_t count, void *dtype);
/* The next batch of a loader without an end: a new pass begins behind the last batch of one. */
int loader_next(ek_loader *loader, ek_batch *batch);
/* Calls `take` for each batch of one pass, in a scope of its own, with the network in evaluation
 * mode and without gradients. Afterwards the network is in training mode. 0 or a negative status.
 */
int loader_evaluate(ek_loader *loader, ek_module *network,
                    int (*take)(ek_module *network, const ek_batch *batch, void *user), void *user);

/* ---- ways to train ---- */

typedef enum train_mode {
    MODE_SINGLE,
    MODE_CLASSIC,  /* outputs and loss on device 0 */
    MODE_BALANCED, /* the loss where the outputs are */
    MODE_AUTO,     /* balanced, each device's share of the batch by measurement */
    MODE_SHARDED,  /* balanced, gradients and the optimizer's state sharded */
    MODES
} train_mode;
extern const char *const mode_names[MODES + 1]; /* NULL ends them */

typedef struct train_job {
    train_mode mode;
    ek_device_list devices;
    char plan[1024];    /* each device's share of a batch that MODE_AUTO follows: see job_prepare */
    ek_module *network; /* owned by the model; NULL without one */
    ek_module *parallel; /* goes over this process's devices: the model, or owned by it */
    ek_module *model, *criterion;
    ek_module *other; /* the criterion of a loss's other term, owned; NULL: none */
    ek_optimizer *optimizer;
    ek_schedule *schedule; /* NULL: the rate stays */
    double max_norm;       /* > 0: gradients are clipped to it */
    bool bf16;             /* forward and loss under autocast */
    ek_loader *loader;     /* of training, owned; NULL: the program's own */
    ek_loader *tests;      /* see job_tests; owned */
    ek_generator *tests_random;
} train_job;

/* Rows of options (args.h): how the devices are used, and a plan, of which `example` is one. */
#define JOB_OPTIONS(ROW, example)                                                   \
    ROW(word, mode, "balanced", mode_names, "MODE", "how devices are used")         \
    ROW(text, devices, NULL, "N",                                                   \
        "how many devices, or a list: 512M@1,256M@0.5; all there are unless given") \
    ROW(device, device, "which kind of devices")                                    \
    ROW(word, goal, "memory", args_goal_words, "GOAL", "what balanced-auto levels") \
    ROW(text, plan, NULL, "PLAN", "what balanced-auto follows instead: " example)

/* The end of a program's description. */
#define JOB_ABOUT                                                                                 \
    "on a single device; on several with outputs and loss on device 0\n"                          \
    "(classic); with the loss on every device (balanced); with shares of the batch that follow\n" \
    "from measurements (balanced-auto); with gradients and optimizer state sharded (sharded).\n"  \
    "What --out wrote can be gone on with: --resume.\n\n"

/* devices_check for a mode; a plan (NULL: none) is for MODE_AUTO, and one for the whole run. */
int job_check_devices(train_mode mode, int kind, const char *device_text, const char *plan);
/* Begins a job whose memory is zero: mode, an ek_device_kind and --devices decide its devices. */
void job_begin(train_job *job, int mode, int kind, const char *device_text);

/* Makes job->model and job->criterion of a network and a criterion, which they own. MODE_AUTO
 * follows the plan, or measures for the goal (an ek_plan_goal) if that is "" or NULL. */
void job_wrap(train_job *job, ek_module *network, ek_module *criterion, const char *plan, int goal);
/* The same, with the devices' shares by these options. `sharded`: as in MODE_SHARDED. */
void job_wrap_with(train_job *job, ek_data_parallel_options options, ek_module *criterion,
                   bool sharded);
/* A criterion for what job->model gives, which owns `criterion`: for a loss of several terms, each
 * with a denominator of its own. */
ek_module *job_criterion(const train_job *job, ek_module *criterion);
/* Makes a loader whose batches job_step takes. On several devices it makes each device's part of a
 * batch on that device; with several ranks batches are those of all, and made on cpu. */
#define job_loader(job, ...) job_loader_with((job), EK_OPTIONS(ek_loader_options, __VA_ARGS__))
ek_loader *job_loader_with(train_job *job, ek_loader_options options);
/* Makes job->tests: a loader on the first device with random numbers of its own, so that testing
 * changes nothing in training. Returns job->tests; NULL on an error. */
#define job_tests(job, ...) job_tests_with((job), EK_OPTIONS(ek_loader_options, __VA_ARGS__))
ek_loader *job_tests_with(train_job *job, ek_loader_options options);
void job_free(train_job *job);

/* ---- steps ----
 *
 * Functions return 0 or a negative status. A loss that is asked for has to be finite. */

/* A loss that is not finite ends a run: EK_E_INVALID, else 0. */
int loss_check(double loss);
/* This rank's rows of a batch of all ranks, a tensor or a list; a batch as it is, cut for devices
 * or not, if there is one rank. */
ek_value job_rows(ek_value batch);
/* One training step on the batch of all ranks; for `loss` see ek_train_step. */
int job_step(train_job *job, ek_value input, ek_value target, double *loss);
/* job_step on the loader's next batch, which has so many samples (NULL: not asked for). The loss; 0
 * with an error pending. */
double job_train(train_job *job, ek_loader *loader, int64_t *samples);
/* For a loss of the program's own, the forward pass of a step on the batch of all ranks. Targets
 * become this rank's rows, where the outputs are: on the first device, unless each keeps its own.
 * Autocast is the caller's, so that it covers the loss too. */
ek_value job_forward(train_job *job, ek_value input, ek_value *target);
/* Element `i` of a network's list of outputs; on several devices of each device's list. */
ek_value job_output(ek_value outputs, int i);
/* What follows the loss: backward, clipping, optimizer and schedule. */
int job_descend(train_job *job, ek_tensor *loss, double *value);

/* ---- shares ---- */

/* Makes a job that has mode and devices by `make`, which gives the rest. Before, in MODE_AUTO,
 * job->plan becomes what is `given` (NULL: nothing), or the plan of the checkpoint `from` (NULL:
 * none) if it is for so many devices. Without either `make` makes a job to measure with, whose
 * steps `step` takes on batches of this size: a run that measures before its first step cuts all
 * batches alike, so that one that is stopped anywhere and gone on with is the same to the bit. Both
 * functions get `user`. 0 or a negative status; free the job anyway. */
int job_prepare(train_job *job, const char *given, const ek_archive *from, int64_t batch,
                int (*make)(void *user), ek_batch_function *step, void *user);
/* The plan of that name to go on from: NULL if the archive (NULL: none) has none, or one for
 * another number of devices. */
const char *job_saved_plan(const ek_archive *archive, const char *name, int devices);

/* ---- results ---- */

/* The devices' peaks, and the plan if there is one, on all ranks. */
void job_print(const train_job *job);

#endif
