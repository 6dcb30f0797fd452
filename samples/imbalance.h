/* imbalance.h: the modes and their results (imbalance_modes.c), and reports of the results
 * (imbalance_report.c). The task is in scenes.h. */
#ifndef SAMPLES_IMBALANCE_H
#define SAMPLES_IMBALANCE_H

#include "scenes.h"

/* ---- modes and their results ---- */

#define ALL_MODES "single,classic,balanced,balanced-auto,sharded"
enum { MOST = 1 << 20 };
#define IMBALANCE_OPTIONS(ROW)                                                                     \
    ROW(text, devices, "4", "N", "how many devices, or a list: 512M@1,256M@0.5")                   \
    ROW(device, device, "which kind of devices")                                                   \
    ROW(int, batch, "64", 1, MOST, "scenes per step")                                              \
    ROW(int, steps, NULL, 1, MOST, "steps per mode; 128 unless --epochs")                          \
    ROW(int, epochs, NULL, 1, MOST, "passes over the training scenes")                             \
    ROW(text, modes, ALL_MODES, "LIST", "which to run")                                            \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of scenes, weights and order")                         \
    ROW(real, lr, NULL, 0, 1e6, "learning rate; 0.05, with adam 0.001")                            \
    ROW(text, optimizer, "sgd", "NAME", "sgd or adam")                                             \
    ROW(real, momentum, "0.9", 0, 1, "of sgd")                                                     \
    ROW(int, width, "32", 1, 512, "channels of the first convolution")                             \
    ROW(int, size, "64", PICTURE, 1024, "height and width of a scene")                             \
    ROW(int, scenes, "2048", 1, MOST, "training scenes")                                           \
    ROW(int, test_scenes, "512", 1, MOST, "test scenes")                                           \
    ROW(folder, data, "Fashion-MNIST's files")                                                     \
    ROW(bytes, cap, "memory per device: 64M, 1.5G")                                                \
    ROW(switch, find_batch,                                                                        \
        "only find each mode's largest batch (by default under 3 times single's state)")           \
    ROW(int, fit_batch, NULL, 1, MOST, "only find out how so many scenes train under that memory") \
    ROW(word, goal, "memory", args_goal_words, "GOAL", "what balanced-auto levels")                \
    ROW(text, plan, NULL, "PLAN",                                                                  \
        "what balanced-auto follows instead: 16,16,16,16; 3: 20,15,15,14")                         \
    ROW(text, json, NULL, "FILE", "write the results there")                                       \
    ROW(text, html, NULL, "FILE", "write a page with charts there")                                \
    ROW(text, trace, NULL, "FILE", "write the last mode's last step there, for Perfetto")

/* The options, and what follows from them. */
typedef struct run_settings {
    IMBALANCE_OPTIONS(arg_member)
    bool adam;                            /* from `optimizer` */
    bool runs[MODES];                     /* from `modes` */
    int64_t device_count;                 /* from `devices` */
    const volatile sig_atomic_t *stopped; /* set when the run must end after the step at hand */
} run_settings;

/* Returns the steps of one mode: --steps, or --epochs passes over the training scenes, whichever
 * ends first. */
int settings_steps(const run_settings *settings);

typedef struct mode_result {
    const char *name;
    ek_report *report;   /* owned: memory and time per device */
    int64_t batch;       /* the batch that was trained with */
    int64_t largest;     /* the largest batch that fits; -1: not searched */
    int64_t *share;      /* each device's share of the batch at the end; owned */
    char plan[512];      /* the plan of balanced-auto; "" in other modes */
    double step_seconds; /* median */
    double samples_per_second;
    series losses, seconds;          /* one value per step; owned */
    double pixel_accuracy, mean_iou; /* on the test scenes */
    int64_t parameters;
    char sha256[65]; /* the parameters' digest; "" if only the largest batch was searched */
} mode_result;

void mode_result_free(mode_result *result);

/* Replaces the devices by fresh ones, so that no mode sees another's memory, and makes the model on
 * them from the seed. Everything must be closed before. 0 or a negative status; close the job
 * anyway.
 *
 * If --devices is a number, mode single has one device, which computes with all cores. If it is a
 * list, mode single has the list's first device. */
int mode_open(train_job *job, const run_settings *settings, train_mode mode);
/* Frees the job and its devices' memory. Returns `rc` if that is an error; else 0, or EK_E_STATE if
 * a device still holds memory. */
int mode_close(train_job *job, int rc);

/* Trains and evaluates, and gives the devices' memory back. Free the result anyway. */
int mode_train(const run_settings *settings, ek_dataset *train, ek_dataset *test, train_mode mode,
               mode_result *result);
/* Finds the largest batch, and takes a few steps with it, which the result describes. If not even
 * one scene fits, result->largest is 0. */
int mode_find_batch(const run_settings *settings, ek_dataset *train, train_mode mode,
                    mode_result *result);
/* Has ek_fit choose how settings->fit_batch scenes train, prints that, takes a few steps so, and
 * prints the report. */
int mode_fit_batch(const run_settings *settings, ek_dataset *train);
/* Returns the largest batch that fits, below `failing`, which is known not to fit; 0 if not even
 * one scene fits; a negative status on an error that is not about memory. */
int64_t mode_largest_batch(const run_settings *settings, ek_dataset *train, train_mode mode,
                           int64_t failing);
/* Chooses a capacity if neither --cap nor --devices gives one: three times what a single device
 * holds after a step, without scenes: parameters, gradients and the optimizer's state. */
int mode_choose_capacity(run_settings *settings, ek_dataset *train);

/* ---- reports ---- */

void report_table(const mode_result *results, int count);
/* Prints the largest batches, for --find-batch. */
void report_batches(const mode_result *results, int count);
/* 0 or a negative status. */
int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count);
int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count);

#endif
