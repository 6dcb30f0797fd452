/* job.h: a network with all that trains it, on one device or several: batches, ways to train,
 * steps, each device's share of a batch, results. */
#ifndef SAMPLES_JOB_H
#define SAMPLES_JOB_H

#include "results.h"
#include "world.h"

/* ---- pictures and batches ---- */

/* Takes over `pictures` and returns them if they have the wanted shape, else NULL with EK_E_SHAPE.
 * The sentence names `directory`. */
ek_dataset *pictures_checked(ek_dataset *pictures, const char *directory, ek_shape wanted);
/* For run_hint: what --data must hold, and where the files come from. Takes the directory. */
#define PICTURES_HINT                                                   \
    "--data %s must hold Fashion-MNIST's four files; Debian's package " \
    "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist"
/* Returns the first `count` samples, collated on cpu. The first sample follows the last one. */
ek_value dataset_first(ek_dataset *set, int64_t count);
/* Samples 0, ..., count - 1. Each pass has another order: a permutation that the generator draws.
 */
ek_sampler *shuffled_sampler(int64_t count, ek_generator *generator);
/* Collates samples (input, target) on cpu, and converts inputs to *dtype: an int with an ek_dtype,
 * as options are. */
ek_value collate_in_dtype(const ek_value *samples, int64_t count, void *dtype);
/* Reads the next batch. After the last batch of a pass comes the first of the next pass. */
int loader_next(ek_loader *loader, ek_batch *batch);
/* Calls `take` for each batch of one pass, each in a separate scope, with the network in evaluation
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
    char plan[1024];     /* the devices' shares in MODE_AUTO: see job_prepare */
    ek_module *network;  /* owned by the model; NULL without one */
    ek_module *parallel; /* the wrapper over this process's devices: the model, or owned by it */
    ek_module *model, *criterion;
    ek_module *other; /* the criterion of the loss's second term, owned; NULL: none */
    ek_optimizer *optimizer;
    ek_schedule *schedule;      /* NULL: the rate stays */
    double max_norm;            /* > 0: gradients are clipped to it */
    bool bf16;                  /* forward and loss under autocast */
    int micro_batches;          /* Parts of a step; 0: the batch is whole. */
    ek_loader *loader;          /* the training loader, owned; NULL: the program's own */
    ek_loader *tests;           /* see job_tests; owned */
    ek_generator *tests_random; /* the generator that `tests` uses, owned */
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

/* Is devices_check for a mode. A plan (NULL: none) must be for MODE_AUTO and for the whole run. */
int job_check_devices(train_mode mode, int kind, const char *device_text, const char *plan);
/* Begins a job whose memory is zero, with the devices of a mode, an ek_device_kind and --devices.
 */
void job_begin(train_job *job, int mode, int kind, const char *device_text);

/* Makes job->model, which owns the network, and job->criterion, which owns the criterion. MODE_AUTO
 * follows the plan. If the plan is "" or NULL, MODE_AUTO measures for the goal, an ek_plan_goal. */
void job_wrap(train_job *job, ek_module *network, ek_module *criterion, const char *plan, int goal);
/* Is job_wrap with the network and the devices' shares in `options`. `sharded`: as in MODE_SHARDED.
 */
void job_wrap_with(train_job *job, ek_data_parallel_options options, ek_module *criterion,
                   bool sharded);
/* Wraps in place of job_wrap as ek_fit chooses, and prints what it has chosen. The job owns network
 * and criterion, also after an error; `options` has all else. For one process. */
void job_wrap_fitting(train_job *job, ek_module *network, ek_module *criterion,
                      ek_fit_options options);
/* Wraps a criterion, which the result owns, for the outputs of job->model. A loss whose terms have
 * different denominators needs one criterion per term. */
ek_module *job_criterion(const train_job *job, ek_module *criterion);
/* Makes a loader of batches for job_step. With several devices the loader makes each device's part
 * of a batch on that device. With several ranks it makes the batch of all ranks on cpu. */
#define job_loader(job, ...) job_loader_with((job), EK_OPTIONS(ek_loader_options, __VA_ARGS__))
ek_loader *job_loader_with(train_job *job, ek_loader_options options);
/* Makes job->tests: a loader on the first device with random numbers of its own, so that testing
 * changes nothing in training. Returns job->tests; NULL on an error. */
#define job_tests(job, ...) job_tests_with((job), EK_OPTIONS(ek_loader_options, __VA_ARGS__))
ek_loader *job_tests_with(train_job *job, ek_loader_options options);
void job_free(train_job *job);

/* ---- steps ----
 *
 * Functions return 0 or a negative status. A loss that they return must be finite. */

/* Returns EK_E_INVALID if the loss is not finite, else 0. */
int loss_check(double loss);
/* Returns this rank's rows of a batch of all ranks, a tensor or a list. If there is one rank,
 * returns the batch unchanged, cut for devices or whole. */
ek_value job_rows(ek_value batch);
/* Takes a training step on the batch of all ranks. ek_train_step says what `loss` may be. */
int job_step(train_job *job, ek_value input, ek_value target, double *loss);
/* Takes job_step on the loader's next batch and writes its number of samples (NULL: nowhere).
 * Returns the loss; 0 with an error pending. */
double job_train(train_job *job, ek_loader *loader, int64_t *samples);
/* Runs the forward pass of a step on the batch of all ranks, for a loss that the program computes
 * with job_rows(target). The caller begins autocast, so that it covers the loss, too. */
ek_value job_forward(train_job *job, ek_value input);
/* Returns element `i` of a network's list of outputs, or of each device's list. */
ek_value job_output(ek_value outputs, int i);
/* Takes the rest of a step: backward, clipping, optimizer and schedule. */
int job_descend(train_job *job, ek_tensor *loss, double *value);

/* ---- shares ---- */

/* Calls `make`, which makes all but the job's mode, devices and loaders. In MODE_AUTO job->plan is
 * set before: to `given`, or if that is NULL to the plan of the checkpoint `from` (NULL: none), if
 * that is for as many devices. Without either, `make` is called twice. The first job serves to
 * measure: `step` takes its steps on batches of size `batch`. A run that measures before its first
 * step cuts all batches alike, so that a stopped and resumed run is the same to the bit. Both
 * functions get `user`. Returns 0 or a negative status; free the job anyway. */
int job_prepare(train_job *job, const char *given, const ek_archive *from, int64_t batch,
                int (*make)(void *user), ek_batch_function *step, void *user);
/* Returns the plan of that name in a checkpoint. NULL if the archive is NULL, or has no plan for
 * this number of devices. */
const char *job_saved_plan(const ek_archive *archive, const char *name, int devices);

/* ---- results ---- */

/* Prints the devices' peaks, and the plan if there is one. All ranks call it. */
void job_print(const train_job *job);

#endif
