/* test_exact.c: ranks of one device and of two each make the loss, gradients and running statistics
 * of one device in one process, and stay equal to the bit while they train. Every rank trains all
 * samples alone first. Then they look for the largest batch.
 *
 *     samples/mpirun -n 2 test_exact --all
 *
 * trains with every combination of model, dtype, devices and batch, and prints a line for each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "kit/exact.h"

enum { RANKS = 4, STEPS = 50 };

/* How many samples each rank has: even, uneven and empty batches. */
typedef struct cut {
    int ranks;
    int64_t counts[RANKS];
} cut;

static const cut cuts[] = {{2, {4, 4}},       {2, {2, 7}},      {2, {9, 0}},    {2, {1, 8}},
                           {3, {3, 3, 3}},    {3, {2, 1, 6}},   {3, {4, 0, 5}}, {4, {2, 2, 2, 2}},
                           {4, {2, 3, 2, 2}}, {4, {0, 1, 8, 0}}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

/* ---- training ---- */

typedef struct outcome {
    ek_tensor *first;      /* loss, gradients and running statistics of the first step */
    ek_tensor *gradients;  /* of the first step */
    ek_tensor *parameters; /* after the last step */
} outcome;

/* Trains on the samples of its rank: step s has the samples from s * total on. */
static outcome train(const exact_job *job, int64_t first, int64_t count, int64_t total, int steps)
{
    outcome made = {NULL};
    ek_optimizer *optimizer = ek_sgd(job->model, .lr = 0.02, .momentum = 0.9);
    CHECK(optimizer, "%s", ek_error_message());
    for (int step = 0; step < steps; step++) {
        ek_scope scope = ek_scope_begin();
        ek_zero_grad(optimizer);
        ek_tensor *loss = exact_loss(job, step * total + first, count);
        CHECK(loss, "%s", ek_error_message());
        CHECK_OK(ek_backward(loss));
        if (step == 0) {
            made.first = exact_outcome(job, loss);
            made.gradients = exact_gradients(job);
            CHECK(made.first && made.gradients, "%s", ek_error_message());
            ek_keep(made.first);
            ek_keep(made.gradients);
        }
        CHECK_OK(ek_step(optimizer));
        ek_scope_end(&scope);
    }
    made.parameters = exact_parameters(job);
    CHECK(made.parameters, "%s", ek_error_message());
    ek_optimizer_free(optimizer);
    return made;
}

static void forget(outcome *made)
{
    ek_release(made->first);
    ek_release(made->gradients);
}

/* The largest of all ranks' numbers; NaN if any is. */
static double largest(double x)
{
    ek_tensor *all[RANKS], *own = ek_full(x, EK_SHAPE(1), .dtype = EK_F64, .device = ek_cpu());
    double most = 0, value = 0;
    for (int r = 0; r < job_size; r++)
        all[r] = ek_zeros(EK_SHAPE(1), .dtype = EK_F64, .device = ek_cpu());
    CHECK_OK(ek_dist_all_gather(own, all));
    for (int r = 0; r < job_size; r++) {
        CHECK_OK(ek_item(all[r], &value));
        most = value > most || isnan(value) ? value : most;
    }
    return most;
}

/* All ranks have the same bits, of gradients, parameters and running statistics. */
static void check_bits(const exact_job *job, const char *what)
{
    uint64_t bits = exact_bits(job->model);
    ek_tensor *own = ek_from_data(&bits, EK_SHAPE(1), EK_I64, .device = ek_cpu());
    ek_tensor *first = ek_clone(own);
    CHECK(bits && first, "%s", ek_error_message());
    CHECK_OK(ek_dist_broadcast(first, 0));
    CHECK(memcmp(ek_tensor_data(first), &bits, sizeof bits) == 0, "%s: other bits than rank 0's",
          what);
}

typedef struct figures {
    double gradients, first, parameters; /* distances from one device */
} figures;

static figures check_cut(exact_task task, ek_dtype dtype, exact_way way, const cut *c,
                         const outcome *alone, int steps)
{
    int64_t first = 0, total = 0;
    for (int r = 0; r < c->ranks; r++) {
        first += r < job_rank ? c->counts[r] : 0;
        total += c->counts[r];
    }
    ek_scope scope = ek_scope_begin();
    exact_job job = exact_make(task, dtype);
    CHECK_OK(exact_wrap(&job, way, NULL));
    outcome made = train(&job, first, c->counts[job_rank], total, steps);
    char what[100];
    snprintf(what, sizeof what, "%s %s, way %d, samples %d %d ..", exact_name(task),
             ek_dtype_name(dtype), (int)way, (int)c->counts[0], (int)c->counts[1]);
    figures f = {exact_distance(made.gradients, alone->gradients),
                 exact_distance(made.first, alone->first),
                 steps == STEPS ? exact_distance(made.parameters, alone->parameters) : 0};
    double tolerance = dtype == EK_F64 ? 1e-12 : 1e-5;
    CHECK(f.gradients <= tolerance, "%s: gradients are %g apart", what, f.gradients);
    CHECK(f.first <= tolerance, "%s: outcomes are %g apart", what, f.first);
    /* Roundings grow with the steps. */
    CHECK(f.parameters <= 10 * tolerance, "%s: parameters are %g apart", what, f.parameters);
    check_bits(&job, what);
    f = (figures){largest(f.gradients), largest(f.first), largest(f.parameters)};
    forget(&made);
    exact_free(&job);
    ek_scope_end(&scope);
    return f;
}

static void print_figures(exact_task task, ek_dtype dtype, exact_way way, const cut *c, figures f)
{
    char batch[40] = "";
    for (int r = 0; r < c->ranks; r++)
        sprintf(batch + strlen(batch), "%s%d", r ? "+" : "", (int)c->counts[r]);
    printf("%-12s %s  %d x %d %-8s %-8s gradients %.1e  with loss and statistics %.1e  "
           "parameters after %d steps %.1e, equal to the bit on all ranks\n",
           exact_name(task), ek_dtype_name(dtype), c->ranks, way == EXACT_ONE_DEVICE ? 1 : 2,
           way == EXACT_ONE_DEVICE ? ""
           : way == EXACT_CLASSIC  ? "classic"
                                   : "balanced",
           batch, f.gradients, f.first, STEPS, f.parameters);
}

/* Without `all` one batch and one way train for long with each model and dtype. */
static void check_task(exact_task task, ek_dtype dtype, bool all)
{
    int number = 0, chosen = ((int)task + (dtype == EK_F32)) % 3; /* of the batches of this size */
    for (int c = 0; c < CUTS; c++) {
        if (cuts[c].ranks != job_size)
            continue;
        int64_t total = 0;
        for (int r = 0; r < job_size; r++)
            total += cuts[c].counts[r];
        bool is_chosen = number++ == chosen;
        exact_job job = exact_make(task, dtype);
        CHECK(job.model, "%s", ek_error_message());
        ek_scope scope = ek_scope_begin();
        outcome alone = train(&job, 0, total, total, all || is_chosen ? STEPS : 1);
        for (int way = 0; way < EXACT_WAYS; way++) {
            bool is_long = all || (is_chosen && way == (int)task % EXACT_WAYS);
            figures f =
                check_cut(task, dtype, (exact_way)way, &cuts[c], &alone, is_long ? STEPS : 1);
            if (all && job_rank == 0)
                print_figures(task, dtype, (exact_way)way, &cuts[c], f);
        }
        forget(&alone);
        exact_free(&job);
        ek_scope_end(&scope);
    }
}

/* ---- the largest batch ---- */

typedef struct search {
    int64_t most;   /* that this rank has memory for */
    int64_t broken; /* the batch that fails for another reason; 0: none */
} search;

static int run_batch(int64_t batch, void *user)
{
    const search *s = user;
    if (batch == s->broken) /* an error of this rank's own */
        return ek_dist_send(NULL, 0);
    if (batch > s->most)
        return EK_E_OUT_OF_MEMORY;
    return ek_dist_barrier();
}

static void ranks_find_one_batch(void)
{
    static const int64_t most[RANKS] = {90, 21, 700, 40};
    search s = {.most = most[job_rank]};
    ek_device_list devices = ek_devices(EK_HOST, 1);
    ek_module *model = ek_distributed_data_parallel(ek_linear(3, 2));
    CHECK(model, "%s", ek_error_message());
    int64_t batch = ek_find_batch(run_batch, &s, .device_ids = devices, .model = model);
    CHECK(batch == 21, "%d: %s", (int)batch, ek_error_message());
    s.broken = job_rank == 1 ? 16 : 0;
    batch = ek_find_batch(run_batch, &s, .device_ids = devices, .model = model);
    CHECK(batch == (job_rank == 1 ? EK_E_INVALID : EK_E_ABORTED), "%d: %s", (int)batch,
          ek_error_message());
    ek_error_clear();
    ek_module_free(model);
}

int main(int argc, char **argv)
{
    bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    CHECK_OK(ek_host_devices_configure("2"));
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    ek_scope scope = ek_scope_begin();
    int tasks = getenv("EVENKEEL_TEST_SHORT") ? 1 : EXACT_TASKS;
    for (int task = 0; task < tasks; task++) {
        check_task((exact_task)task, EK_F64, all);
        check_task((exact_task)task, EK_F32, all);
    }
    ek_scope_end(&scope);
    ranks_find_one_batch();
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}
