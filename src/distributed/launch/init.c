/* init.c: ek_dist_init_process_group, by which a process joins the job, and
 * ek_dist_destroy_process_group, by which the process leaves the job. */
#include "group/world.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/device.h"
#include "core/environment.h"
#include "core/locale.h"
#include "core/rail.h"
#include "core/ranks.h"
#include "core/thread.h"
#include "launch/launcher.h"

static const double default_timeout = 1800; /* seconds */

/* ---- joining ---- */

static int init_check_options(const ek_dist_options *options)
{
    if (options->init_method && strcmp(options->init_method, "env://") != 0)
        return EK_FAIL(EK_E_INVALID,
                       "init_process_group: init_method \"%s\"; rank and world size are the "
                       "launcher's (\"env://\"): start the program with mpirun -n 2 PROGRAM",
                       options->init_method);
    bool shared;
    EK_TRY(ek_environment_switch("EVENKEEL_DIST_SHARED_MEMORY", &shared));
    const char *sums = getenv("EVENKEEL_DIST_SUM");
    if (sums && *sums && strcmp(sums, "nccl") != 0)
        return EK_FAIL(
            EK_E_INVALID,
            "EVENKEEL_DIST_SUM is \"%.80s\"; it can be nccl, or absent: then sums are made "
            "by a fixed tree",
            sums);
    if ((unsigned)options->backend > EK_DIST_NCCL)
        return EK_FAIL(EK_E_INVALID, "init_process_group: backend %d is unknown",
                       (int)options->backend);
    return 0;
}

/* Checks that the options name the rank and world size that the launcher has given. */
static int init_check_place(const ek_dist_options *options, int rank, int size)
{
    const int given_size = options->world_size != EK_UNSET ? options->world_size : size;
    const int given_rank = options->rank != EK_UNSET ? options->rank : rank;
    if (given_size == size && given_rank == rank)
        return 0;
    return EK_FAIL(
        EK_E_INVALID,
        "init_process_group: rank %d of %d was asked for, but the launcher has made this "
        "process rank %d of %d",
        given_rank, given_size, rank, size);
}

/* Returns the time-out in seconds, or a negative number with the error set. */
static double init_timeout(const ek_dist_options *options)
{
    const char *text = getenv("EVENKEEL_DIST_TIMEOUT");
    double seconds = default_timeout;
    if (text && *text) {
        char *end;
        locale_t before = ek_locale_begin();
        seconds = strtod(text, &end);
        ek_locale_end(before);
        if (*end || !(seconds > 0) || !isfinite(seconds)) {
            EK_FAIL(EK_E_INVALID,
                    "EVENKEEL_DIST_TIMEOUT is \"%s\"; it is a positive number of seconds", text);
            return -1;
        }
    }
    if (options->timeout != EK_UNSET)
        seconds = options->timeout;
    if (!(seconds > 0) || !isfinite(seconds)) {
        EK_FAIL(EK_E_INVALID, "init_process_group: a timeout of %g seconds; it must be positive",
                seconds);
        return -1;
    }
    return seconds;
}

/* Runs when a program ends without ek_shutdown: tells the other ranks why the program ends, and
 * gives them a short time to end too. */
static void init_at_exit(int status, void *unused)
{
    ek_communication *communication = ek_world_communication();
    (void)unused;
    if (!communication || ek_forked())
        return;
    if (pthread_equal(pthread_self(), communication->thread))
        return; /* the transport ends the job by exit on this thread */
    ek_error_record error = {.status = EK_E_STATE};
    snprintf(error.message, sizeof error.message,
             "the program has ended with status %d and without ek_shutdown%s%.800s", status,
             ek_error_status() < 0 ? "; its error was: " : "", ek_error_message());
    ek_communication_raise(communication, &error);
    ek_communication_print(communication, &error, stderr);
    fflush(NULL); /* the next call may end the process */
    ek_communication_close(communication, true);
    ek_world_set(NULL, NULL);
}

/* Returns EK_E_BACKEND for EK_DIST_NCCL if this process has no GPU or no NCCL. */
static int init_check_backend(ek_dist_backend backend)
{
    const ek_backend *cuda = NULL;
    for (const ek_backend *const *one = ek_backend_table; *one; one++)
        cuda = (*one)->kind == EK_CUDA ? *one : cuda;
    if (backend != EK_DIST_NCCL)
        return 0;
    const char *reason = !cuda ? "this library was built without CUDA" : NULL;
    if (cuda && cuda->device_count() < 1)
        reason = cuda->why_none && cuda->why_none() ? cuda->why_none() : "there are no GPUs";
    if (!reason)
        reason = cuda->rails ? cuda->rails->reason() : "it is not part of this build";
    return !reason ? 0
                   : EK_FAIL(EK_E_BACKEND,
                             "init_process_group: EK_DIST_NCCL, but NCCL cannot be used: %s; "
                             "EK_DIST_AUTO carries tensors of GPUs by what there is",
                             reason);
}

/* Numbers the devices of all ranks, so that no two devices draw the same random numbers. */
static int init_number_devices(void)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *all = ek_zeros(EK_SHAPE(ek_world.size, 2), EK_I64, .device = ek_cpu());
    int64_t *counts = all ? ek_tensor_address(all) : NULL;
    ek_device_list gpus = ek_dist_devices(EK_CUDA);
    if (counts) {
        counts[2 * ek_world.rank] = ek_device_count(EK_HOST);
        counts[2 * ek_world.rank + 1] = gpus.count > 0 ? gpus.count : 0;
    }
    int rc = counts ? ek_error_status() : ek_error_pending();
    if (rc >= 0)
        rc = ek_dist_all_reduce(all);
    ek_world.first_device[EK_CPU] = ek_world.rank;
    ek_world.first_device[EK_HOST] = ek_world.first_device[EK_CUDA] = 0;
    for (int r = 0; r < ek_world.rank && rc >= 0; r++) {
        ek_world.first_device[EK_HOST] += (int)counts[2 * r];
        ek_world.first_device[EK_CUDA] += (int)counts[2 * r + 1];
    }
    if (gpus.count > 0) /* this process's first GPU gets the process's first number */
        ek_world.first_device[EK_CUDA] -= gpus.devices[0].index;
    ek_scope_end(&scope);
    return rc;
}

/* Set if a thread gets SIGCONT while the process waits to join. */
static atomic_bool init_is_woken;

static void init_note_signal(int number)
{
    (void)number;
    atomic_store(&init_is_woken, true);
}

typedef struct init_wait {
    const ek_launched *launched;
    uint64_t began;
    double seconds;    /* how long the process has waited */
    char missing[800]; /* which ranks have not come */
} init_wait;

static bool init_look(init_wait *wait)
{
    wait->seconds = 1e-9 * (double)(ek_clock_ns() - wait->began);
    return ek_roster_describe(wait->launched, wait->missing, sizeof wait->missing);
}

/* If a rank ends before all have joined, Open MPI's launcher ends the other ranks without saying
 * which rank they waited for. The launcher sends those ranks SIGCONT one second before. Then, if a
 * rank of this machine has no process, this function prints which ranks have not come. */
static void init_answer_signal(void *user)
{
    init_wait *wait = user;
    char seconds[32];
    if (!atomic_exchange(&init_is_woken, false) || !init_look(wait))
        return;
    ek_format(seconds, sizeof seconds, "%.1f", wait->seconds);
    fprintf(stderr, "evenkeel: init_process_group has waited %s s: %s\n", seconds, wait->missing);
}

/* Joins the job. The sentence of a time-out names the ranks that have not come. */
static int init_open(const ek_launched *launched, const ek_transport *transport, double timeout,
                     bool check, ek_communication **communication)
{
    init_wait wait = {.launched = launched, .began = ek_clock_ns()};
    struct sigaction noting = {.sa_handler = init_note_signal, .sa_flags = SA_RESTART}, before;
    atomic_store(&init_is_woken, false);
    sigaction(SIGCONT, NULL, &before);
    if (before.sa_handler == SIG_DFL)
        sigaction(SIGCONT, &noting, NULL);
    int rc = ek_communication_open(transport, NULL, launched->size, timeout, check,
                                   init_answer_signal, &wait, communication);
    sigaction(SIGCONT, &before, NULL);
    if (rc != EK_E_TIMEOUT)
        return rc;
    init_look(&wait);
    ek_error_clear();
    return EK_FAIL(EK_E_TIMEOUT, "init_process_group waited %.1f s: %s", wait.seconds,
                   wait.missing);
}

typedef struct init_joined {
    const ek_dist_options *options;
    const ek_launched *launched;
} init_joined;

/* Checks the options once this process is in the world, and numbers the devices. */
static int init_check_joined(ek_process_group *world, void *user)
{
    static bool registered; /* calls come from one thread at a time */
    const init_joined *joined = user;
    EK_TRY(init_check_backend(joined->options->backend));
    if (joined->launched->size <= 0) /* only MPI tells the size */
        EK_TRY(init_check_place(joined->options, world->rank, world->size));
    if (joined->launched->rank != world->rank)
        return EK_FAIL(
            EK_E_BACKEND,
            "init_process_group: the launcher has made this process rank %d, and %s rank "
            "%d of %d; start the program with the launcher of the same MPI",
            joined->launched->rank, joined->launched->mpi, world->rank, world->size);
    if (!registered)
        registered = on_exit(init_at_exit, NULL) == 0;
    return init_number_devices();
}

int ek_dist_init_process_group_with(ek_dist_options options)
{
    EK_TRY(ek_fork_check());
    if (ek_dist_is_initialized())
        return EK_FAIL(EK_E_STATE, "init_process_group: the process is in a world already");
    ek_launched launched;
    EK_TRY(ek_launcher_find(&launched));
    EK_TRY(init_check_options(&options));
    if (launched.size > 0)
        EK_TRY(init_check_place(&options, launched.rank, launched.size));
    double timeout = init_timeout(&options);
    if (timeout < 0)
        return ek_error_pending();
    if (!launched.several) {
        EK_TRY(init_check_backend(options.backend));
        ek_world_set(NULL, ek_process_group_new(NULL, 0, NULL, 1, timeout));
        return ek_dist_is_initialized() ? 0 : ek_error_pending();
    }
    const ek_transport *transport;
    EK_TRY(ek_launcher_transport(&launched, &transport));
    ek_communication *communication;
    EK_TRY(init_open(&launched, transport, timeout, options.check, &communication));
    ek_fork_arm();
    ek_world = communication->place;
    communication->backend = options.backend;
    ek_world_set(communication, NULL);
    init_joined joined = {&options, &launched};
    return ek_group_call("init_process_group", NULL, init_check_joined, &joined);
}

int ek_dist_destroy_process_group(ek_process_group *group)
{
    EK_TRY(ek_fork_check());
    if (!ek_dist_is_initialized())
        return group ? EK_FAIL(EK_E_STATE, "destroy_process_group: there is no process group") : 0;
    if (group && group != ek_dist_world())
        return ek_world_destroy_group(group);
    ek_world_destroy_groups();
    ek_communication *communication = ek_world_communication();
    ek_process_group *alone = communication ? NULL : ek_dist_world();
    int rc = ek_communication_close(communication, false);
    ek_world_set(NULL, NULL);
    ek_process_group_free(alone);
    ek_world = (ek_world_place){.size = 1, .local_size = 1};
    return rc;
}

static int init_leave(void)
{
    return ek_dist_destroy_process_group(NULL);
}

__attribute__((constructor)) static void init_watch_shutdown(void)
{
    ek_at_shutdown(init_leave);
    ek_ranks_of = ek_process_group_ranks;
}
