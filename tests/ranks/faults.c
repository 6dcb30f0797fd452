/* faults.c: ranks that fail, die or hang (tests/ranks/faults starts it).
 *
 *     mpirun -n 3 faults FAULT:PLACE...
 *
 * In each cell rank 1 has a fault while the others are in a place. After an error all ranks are
 * told of it, and then train, add and send as if nothing had been; rank 0 says so, after how many
 * milliseconds, and with which error. Of the faults kill, stop, exit0, exit3 and loop there is one,
 * the last: the other ranks' errors are printed, and status 1 given. So it is if the place is init,
 * joining, which is init once the others wait in it, or shutdown. Mute is a stop while rank 0, the
 * first whose call is late, hangs before it prints its error.
 *
 * In FOLDER each rank writes to the file `marks` the time in milliseconds at which it comes to a
 * place that not all ranks leave, and in joining to `come` once it waits for the others. */
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "evenkeel/evenkeel.h"
#include "job.h"

enum { WRONG = 1, LARGE = 100000 };
typedef enum fault {
    FORWARD,
    USER,
    MEMORY,
    MISMATCH,
    KILL,
    STOP,
    EXIT0,
    EXIT3,
    LOOP,
    MUTE,
    FAULTS
} fault;
typedef enum place {
    INIT,
    JOINING,
    BARRIER,
    SUM,
    MESSAGE,
    BUCKET,
    SYNC_FORWARD,
    SYNC_BACKWARD,
    NO_SYNC,
    STEP,
    UNITS,
    SAVE,
    SHUTDOWN,
    PLACES
} place;
static const char *const faults[] = {"forward", "user",  "memory", "mismatch", "kill",
                                     "stop",    "exit0", "exit3",  "loop",     "mute"};
static const char *const places[] = {"init",    "joining", "barrier",      "all_reduce",
                                     "message", "bucket",  "sync_forward", "sync_backward",
                                     "no_sync", "step",    "units",        "save",
                                     "shutdown"};

/* synced: its batch normalisation is, over ranks; sharded: its optimizer is; gathered: its
 * parameters are, which ranks read from each other by messages. */
static ek_module *model, *synced, *plain, *sharded, *gathered;
static ek_optimizer *optimizer;
static const char *folder;
static bool breaks, breaks_back; /* the next forward, or backward, of the modules fails */

static int find(const char *const *names, int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
            return i;
    CHECK(false, "%s: unknown", name);
    return -1;
}

/* ---- what the script reads ---- */

static void note(const char *name, long long number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "a");
    CHECK(file, "%s cannot be written", path);
    fprintf(file, "%lld\n", number);
    fclose(file);
}

static long long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Tells whether this process has joined, or waits to: it has a communication thread. */
static bool has_come(void)
{
    char name[64] = "";
    glob_t threads;
    bool found = false;
    int rc = glob("/proc/self/task/*/comm", 0, NULL, &threads);
    for (size_t i = 0; rc == 0 && i < threads.gl_pathc && !found; i++) {
        FILE *file = fopen(threads.gl_pathv[i], "r");
        found = file && fgets(name, sizeof name, file) && strcmp(name, "ek communicate\n") == 0;
        if (file)
            fclose(file);
    }
    if (rc == 0)
        globfree(&threads);
    return found;
}

/* Beside the program: other machines do not see this process. */
static void *note_coming(void *unused)
{
    (void)unused;
    while (!has_come())
        usleep(1000);
    note("come", getpid());
    return NULL;
}

static void await_others(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/come", folder);
    for (int come = 0; come < job_size - 1; usleep(1000)) {
        FILE *file = fopen(path, "r");
        come = 0;
        for (int c; file && (c = fgetc(file)) != EOF;)
            come += c == '\n';
        if (file)
            fclose(file);
    }
}

/* ---- a module whose forward and backward can fail ---- */

static int fragile_pass(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    (void)call;
    y[0] = ek_clone(x[0]);
    return 0;
}

static int fragile_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    (void)call;
    if (breaks_back)
        return ek_error(EK_E_USER, "the layer is broken");
    dx[0] = dy[0];
    return 0;
}

static const ek_function fragile_function = {.name = "fragile",
                                             .forward = fragile_pass,
                                             .backward = fragile_backward};

static ek_value fragile_forward(ek_module *self, const ek_args *args)
{
    (void)self;
    ek_tensor *x = ek_arg_tensor(args, 0), *y = NULL;
    if (breaks)
        ek_error(EK_E_USER, "the layer is broken");
    else if (x && ek_function_apply(&fragile_function, &x, 1, &y) >= 0)
        return ek_value_of_tensor(y);
    return ek_value_error();
}

static const ek_module_type fragile_type = {.name = "fragile",
                                            .size = sizeof(ek_module),
                                            .forward = fragile_forward};

/* On a device that can have a capacity. Whatever of the two passes fails does so before the other
 * ranks' normalisations have met. */
static ek_module *net_new(bool sync)
{
    ek_module *norm = sync ? ek_sync_batch_norm(64) : ek_batch_norm1d(64);
    ek_module *net = ek_sequential(ek_linear(64, 64), ek_module_new(&fragile_type), norm,
                                   ek_module_new(&fragile_type), ek_linear(64, 1));
    return net && ek_module_to_device(net, ek_host(0)) >= 0 ? net : NULL;
}

static ek_module *distributed_new(bool sync)
{
    return ek_distributed_data_parallel(net_new(sync), .bucket_cap_mb = 0.001,
                                        .broadcast_buffers = false);
}

static ek_tensor *samples(int64_t count)
{
    return ek_ones(EK_SHAPE(count, 64), .device = ek_host(0));
}

/* ---- what ranks do together ---- */

static ek_tensor *loss_of(ek_module *module, ek_tensor *x)
{
    ek_module_zero_grad(module);
    return ek_sum(ek_square(ek_apply(module, x)));
}

static int train(ek_module *module)
{
    return ek_backward(loss_of(module, samples(32)));
}

static int train_in_parts(bool sync)
{
    ek_module_zero_grad(model);
    ek_no_sync no_sync = {0};
    if (!sync)
        no_sync = ek_no_sync_begin(model);
    int rc = ek_backward(ek_sum(ek_apply(model, samples(8))));
    ek_no_sync_end(&no_sync);
    return rc < 0 ? rc : ek_backward(ek_sum(ek_apply(model, samples(8))));
}

static int give_gradient(const char *path, ek_tensor *parameter, void *user)
{
    (void)path, (void)user;
    return ek_tensor_set_grad(parameter, ek_mul_scalar(ek_detach(parameter), 0.1));
}

static int step(void)
{
    int rc = ek_module_parameters(sharded, give_gradient, NULL);
    return rc < 0 ? rc : ek_step(optimizer);
}

static int add(int64_t count)
{
    return ek_dist_all_reduce(ek_ones(EK_SHAPE(count), .device = ek_cpu()));
}

/* Rank 1 saves, the others wait for it. */
static int save(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model", folder);
    int rc = 0;
    if (job_rank == WRONG) {
        ek_archive *archive = ek_archive_new();
        rc = ek_archive_put_module(archive, "model", model);
        if (rc >= 0)
            rc = ek_archive_save(archive, path);
        ek_archive_free(archive);
    }
    return rc < 0 ? ek_dist_raise() : ek_dist_barrier();
}

static int send_or_receive(int64_t count)
{
    ek_tensor *x = ek_ones(EK_SHAPE(count), .device = ek_cpu());
    if (job_rank == WRONG)
        return ek_dist_send(x, 0);
    return job_rank == 0 ? ek_dist_recv(x, WRONG) : 0;
}

static int visit(place where)
{
    switch (where) {
    case BARRIER:
        return ek_dist_barrier();
    case SUM:
        return add(LARGE);
    case MESSAGE:
        return send_or_receive(LARGE);
    case BUCKET:
        return train(model);
    case SYNC_FORWARD:
    case SYNC_BACKWARD:
        return train(synced);
    case NO_SYNC:
        return train_in_parts(false);
    case STEP:
        return step();
    case UNITS:
        return train(gathered);
    case SAVE:
        return save();
    default:
        return 0;
    }
}

/* ---- faults ---- */

/* Forward, or backward, has no memory for hidden layers. */
static int train_without_memory(ek_module *module, bool forward)
{
    ek_memory_stats stats;
    ek_tensor *x = samples(32), *loss = forward ? NULL : loss_of(module, x);
    CHECK_OK(ek_error_status());
    CHECK_OK(ek_memory_get_stats(ek_host(0), &stats));
    CHECK_OK(ek_memory_set_capacity(ek_host(0), stats.in_use));
    int rc = ek_backward(forward ? loss_of(module, x) : loss);
    ek_memory_set_capacity(ek_host(0), 0);
    CHECK(rc == EK_E_OUT_OF_MEMORY, "training without memory: %s: %s", ek_status_name(rc),
          ek_error_message());
    return rc;
}

/* What rank 1 does instead. */
static int differ(place where)
{
    switch (where) {
    case SUM:
        return add(LARGE + 1);
    case MESSAGE:
        return send_or_receive(LARGE + 1);
    case NO_SYNC:
        return train_in_parts(true);
    default: /* the others are in a barrier, in backward, in a step, or leave */
        return add(LARGE);
    }
}

/* Rank 1's part of what comes before the place. */
static ek_tensor *come_to(place where)
{
    ek_tensor *loss = where == SYNC_BACKWARD ? loss_of(synced, samples(32)) : NULL;
    CHECK_OK(ek_error_status());
    return loss;
}

static int break_layer(place where)
{
    bool sync = where == SYNC_FORWARD || where == SYNC_BACKWARD;
    ek_tensor *loss = come_to(where);
    breaks = !loss;
    breaks_back = loss != NULL;
    int rc = loss ? ek_backward(loss) : train(sync ? synced : where == UNITS ? gathered : model);
    breaks = breaks_back = false;
    return rc;
}

static int run_out_of_memory(place where)
{
    if (where == BUCKET || where == NO_SYNC)
        return train_without_memory(model, false);
    if (where == UNITS)
        return train_without_memory(gathered, false);
    if (where == SYNC_FORWARD || where == SYNC_BACKWARD)
        return train_without_memory(synced, where == SYNC_FORWARD);
    train_without_memory(plain, false);
    return ek_dist_raise();
}

static int fail(fault what, place where)
{
    if (what == FORWARD)
        return break_layer(where);
    if (what == MEMORY)
        return run_out_of_memory(where);
    come_to(where);
    if (what >= KILL)
        note("marks", milliseconds());
    switch (what) {
    case USER:
        ek_error(EK_E_USER, "the sample is broken");
        return ek_dist_raise();
    case MISMATCH:
        return differ(where);
    case KILL:
        raise(SIGKILL);
        break;
    case STOP:
    case MUTE:
        raise(SIGSTOP);
        break;
    case EXIT0:
    case EXIT3:
        exit(what == EXIT0 ? 0 : 3);
    default:
        for (;;) /* without end, and without a call */
            usleep(1000);
    }
    return 0;
}

/* ---- cells ---- */

/* After an error everything works on all ranks. */
static void recover(const char *cell)
{
    if (ek_error_status() < 0)
        ek_dist_print_error(stderr);
    for (int i = 0; i < 2; i++) {
        ek_scope scope = ek_scope_begin();
        for (place where = BARRIER; where < SHUTDOWN; where++)
            if (visit(where) < 0)
                job_fail(__FILE__, __LINE__, cell, "%s afterwards: %s", places[where],
                         ek_error_message());
        ek_tensor *x = ek_ones(EK_SHAPE(3), .device = ek_cpu());
        double sum = 0;
        CHECK_OK(ek_dist_all_reduce(x));
        CHECK_OK(ek_item(ek_sum(x), &sum));
        CHECK(sum == 3 * job_size, "%s: the sum is %g", cell, sum);
        ek_scope_end(&scope);
    }
}

/* The error is the one that is wanted, and the other ranks' names rank 1. Then it is over. */
static void judge(fault what, place where, int rc, const char *cell)
{
    static const char *const sentences[] = {"the layer is broken", "the sample is broken", "memory",
                                            ""};
    bool message = what == MISMATCH && where == MESSAGE;
    if (rc >= 0 && !message) /* a rank that was not in the call learns it with its next one */
        rc = ek_dist_barrier();
    if (message && job_rank > WRONG)
        return;
    CHECK(rc < 0 && strstr(ek_error_message(), sentences[what]), "%s: %s: \"%s\"", cell,
          ek_status_name(rc), ek_error_message());
    if (what != MISMATCH && job_rank != WRONG)
        CHECK(strstr(ek_error_message(), "rank 1 on ") && ek_dist_error_rank() == WRONG,
              "%s: rank %d: \"%s\"", cell, ek_dist_error_rank(), ek_error_message());
    if (what == MISMATCH && job_rank != WRONG)
        CHECK(strstr(ek_error_message(), "rank 1"), "%s: \"%s\"", cell, ek_error_message());
}

/* An error of all ranks, or the end. */
static int run_cell(fault what, place where, const char *cell)
{
    char sentence[1024] = "";
    ek_scope scope = ek_scope_begin();
    bool ends = what >= KILL || where == SHUTDOWN;
    if (what == MUTE && job_rank > WRONG)
        usleep(100000);
    long long began = milliseconds();
    if (ends)
        note("marks", began);
    int rc = job_rank == WRONG ? fail(what, where) : where == SHUTDOWN ? 0 : visit(where);
    if (ends) {
        if (rc >= 0 && where != SHUTDOWN)
            rc = ek_dist_barrier(); /* who was not in the call */
    } else {
        judge(what, where, rc, cell);
        long long took = milliseconds() - began;
        snprintf(sentence, sizeof sentence, "%s", ek_error_message());
        recover(cell);
        if (job_rank == 0)
            fprintf(stderr, "cell %s %lld %s\n", cell, took, sentence);
        rc = 0;
    }
    ek_scope_end(&scope);
    return rc;
}

static int leave(int rc, fault what)
{
    if (what == MUTE && job_rank == 0)
        sleep(20);
    if (rc < 0)
        ek_dist_print_error(stderr);
    ek_optimizer_free(optimizer);
    ek_module_free(sharded);
    ek_module_free(gathered);
    ek_module_free(model);
    ek_module_free(synced);
    ek_module_free(plain);
    return ek_shutdown() < 0 || rc < 0;
}

/* Joins the job, and makes what is trained. `what`: the fault of this rank meanwhile, or FAULTS. */
static int join(fault what, place where)
{
    if (what != FAULTS && where == JOINING)
        await_others();
    note("marks", milliseconds());
    if (what == USER)
        return ek_error(EK_E_USER, "the sample is broken");
    if (what >= KILL && what < FAULTS)
        fail(what, INIT);
    int rc = what == MISMATCH ? ek_dist_init_process_group(.world_size = 7)
                              : ek_dist_init_process_group();
    if (rc < 0)
        return rc;
    plain = net_new(false);
    model = distributed_new(false);
    synced = distributed_new(true);
    sharded = ek_distributed_data_parallel(net_new(false), .shard = EK_SHARD_OPTIMIZER);
    optimizer = ek_adam(sharded, .lr = 1e-3);
    setenv("EVENKEEL_DIST_SHARED_MEMORY", "0", 1);
    gathered = ek_distributed_data_parallel(net_new(false), .shard = EK_SHARD_PARAMETERS,
                                            .broadcast_buffers = false);
    unsetenv("EVENKEEL_DIST_SHARED_MEMORY");
    if (!model || !synced || !plain || !optimizer || !gathered || train(model) < 0 ||
        train(synced) < 0)
        return ek_error_status();
    recover("before");
    return 0;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    job_rank = atoi(rank ? rank : getenv("PMI_RANK"));
    job_size = 3;
    folder = getenv("FOLDER");
    CHECK(folder && argc > 1, "FOLDER or cells are missing");
    pthread_t watcher;
    if (strstr(argv[1], ":joining") && job_rank != WRONG &&
        pthread_create(&watcher, NULL, note_coming, NULL) == 0)
        pthread_detach(watcher);
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], ":");
        const char *name = argv[i] + length + 1;
        fault what = (fault)find(faults, FAULTS, argv[i], length);
        place where = (place)find(places, PLACES, name, strlen(name));
        int rc = i == 1 ? join(where <= JOINING && job_rank == WRONG ? what : FAULTS, where) : 0;
        if (rc >= 0)
            rc = run_cell(what, where, argv[i]);
        if (rc < 0 || what >= KILL)
            return leave(rc, what);
    }
    return leave(0, FAULTS);
}
