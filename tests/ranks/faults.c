/* faults.c: ranks that fail, die or hang (tests/ranks/faults starts it).
 *
 *     mpirun -n 3 faults FAULT:PLACE...
 *
 * In each cell rank 1 has a fault while the others are in a place. After an error all ranks are
 * told of it, and then train, add and send as if nothing had been. Of the faults kill, stop, exit0,
 * exit3 and loop there is one, the last: the other ranks' errors are printed, and status 1 given.
 * Each rank writes its process id to the file that PIDS names. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    FAULTS
} fault;
typedef enum place {
    INIT,
    BARRIER,
    SUM,
    MESSAGE,
    BUCKET,
    NO_SYNC,
    STEP,
    SAVE,
    SHUTDOWN,
    PLACES
} place;
static const char *const faults[] = {"forward", "user",  "memory", "mismatch", "kill",
                                     "stop",    "exit0", "exit3",  "loop"};
static const char *const places[] = {"init",    "barrier", "all_reduce", "message", "bucket",
                                     "no_sync", "step",    "save",       "shutdown"};

static ek_module *model, *plain, *divided; /* the last one's optimizer is divided over ranks */
static ek_optimizer *optimizer;
static const char *folder;
static bool breaks; /* the next forward of the module fails */

static int find(const char *const *names, int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
            return i;
    CHECK(false, "%s: unknown", name);
    return -1;
}

/* ---- a module whose forward can fail ---- */

static ek_value fragile_forward(ek_module *self, const ek_args *args)
{
    (void)self;
    if (!breaks)
        return ek_value_of_tensor(ek_arg_tensor(args, 0));
    ek_error(EK_E_USER, "the layer is broken");
    return ek_value_error();
}

static const ek_module_type fragile_type = {.name = "fragile",
                                            .size = sizeof(ek_module),
                                            .forward = fragile_forward};

/* On a device that can have a capacity. */
static ek_module *net_new(void)
{
    ek_module *net = ek_sequential(ek_linear(64, 64), ek_module_new(&fragile_type),
                                   ek_batch_norm1d(64), ek_linear(64, 1));
    return net && ek_module_to_device(net, ek_host(0)) >= 0 ? net : NULL;
}

static ek_tensor *samples(int64_t count)
{
    return ek_ones(EK_SHAPE(count, 64), .device = ek_host(0));
}

/* ---- what ranks do together ---- */

static int train(ek_module *module)
{
    ek_module_zero_grad(module);
    return ek_backward(ek_sum(ek_square(ek_apply(module, samples(32)))));
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
    int rc = ek_module_parameters(divided, give_gradient, NULL);
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
    case NO_SYNC:
        return train_in_parts(false);
    case STEP:
        return step();
    case SAVE:
        return save();
    default:
        return 0;
    }
}

/* ---- faults ---- */

/* Backward has no memory for the gradients of hidden layers. */
static int train_without_memory(ek_module *module)
{
    ek_memory_stats stats;
    ek_module_zero_grad(module);
    ek_tensor *loss = ek_sum(ek_square(ek_apply(module, samples(32))));
    CHECK_OK(loss ? 0 : ek_error_status());
    CHECK_OK(ek_memory_get_stats(ek_tensor_device(loss), &stats));
    CHECK_OK(ek_memory_set_capacity(ek_tensor_device(loss), stats.in_use));
    int rc = ek_backward(loss);
    ek_memory_set_capacity(ek_tensor_device(loss), 0);
    CHECK(rc == EK_E_OUT_OF_MEMORY, "backward without memory: %s: %s", ek_status_name(rc),
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

static int fail(fault what, place where)
{
    int rc = 0;
    switch (what) {
    case FORWARD:
        breaks = true;
        rc = train(model);
        breaks = false;
        return rc;
    case USER:
        ek_error(EK_E_USER, "the sample is broken");
        return ek_dist_raise();
    case MEMORY:
        if (where == BUCKET || where == NO_SYNC)
            return train_without_memory(model);
        train_without_memory(plain);
        return ek_dist_raise();
    case MISMATCH:
        return differ(where);
    case KILL:
        raise(SIGKILL);
        break;
    case STOP:
        raise(SIGSTOP);
        break;
    case EXIT0:
    case EXIT3:
        exit(what == EXIT0 ? 0 : 3);
    default:
        for (;;) /* without end, and without a call */
            usleep(1000);
    }
    return rc;
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
    ek_scope scope = ek_scope_begin();
    int rc = job_rank == WRONG ? fail(what, where) : where == SHUTDOWN ? 0 : visit(where);
    if (what >= KILL) {
        if (rc >= 0 && where != SHUTDOWN)
            rc = ek_dist_barrier(); /* who was not in the call */
    } else if (where != SHUTDOWN) {
        judge(what, where, rc, cell);
        recover(cell);
        rc = 0;
    }
    ek_scope_end(&scope);
    return rc;
}

static void write_pid(void)
{
    FILE *file = fopen(getenv("PIDS"), "a");
    CHECK(file, "PIDS is no file");
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

static int leave(int rc)
{
    if (rc < 0)
        ek_dist_print_error(stderr);
    ek_optimizer_free(optimizer);
    ek_module_free(divided);
    ek_module_free(model);
    ek_module_free(plain);
    return ek_shutdown() < 0 || rc < 0;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    job_rank = atoi(rank ? rank : getenv("PMI_RANK"));
    job_size = 3;
    folder = getenv("FOLDER");
    write_pid();
    CHECK(argc > 1, "cells are missing");
    fault what = FAULTS;
    place where = PLACES;
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], ":");
        what = (fault)find(faults, FAULTS, argv[i], length);
        where = (place)find(places, PLACES, argv[i] + length + 1, strlen(argv[i] + length + 1));
        if (i == 1) {
            bool wrong = where == INIT && job_rank == WRONG;
            if (wrong && what >= KILL)
                fail(what, where);
            int rc =
                wrong ? ek_dist_init_process_group(.world_size = 7) : ek_dist_init_process_group();
            if (rc < 0)
                return leave(rc);
            plain = net_new();
            model = ek_distributed_data_parallel(net_new(), .bucket_cap_mb = 0.001,
                                                 .broadcast_buffers = EK_OFF);
            divided = ek_distributed_data_parallel(net_new(), .shard = EK_SHARD_OPTIMIZER);
            optimizer = ek_adam(divided, .lr = 1e-3);
            if (!model || !plain || !optimizer || train(model) < 0)
                return leave(ek_error_status());
            recover("before");
        }
        int rc = run_cell(what, where, argv[i]);
        if (rc < 0 || what >= KILL)
            return leave(rc);
        if (job_rank == 0 && where != SHUTDOWN)
            fprintf(stderr, "%s: all ranks go on\n", argv[i]);
    }
    return leave(0);
}
