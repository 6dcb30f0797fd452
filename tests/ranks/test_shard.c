/* test_shard.c: optimizers that are sharded over ranks of one device and of two do what whole ones
 * do, to the bit, in trainings of all kinds; and what they save is the whole. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "kit/exact.h"

enum { STEPS = 3, MOST = 40 };

typedef enum way { ONE_DEVICE, CLASSIC, BALANCED, WAYS } way;

/* One of the two trainings. */
typedef struct training {
    exact_job job;
    ek_optimizer *optimizer;
} training;

static training training_new(exact_task task, way how, ek_shard_policy shard,
                             ek_offload_policy offload)
{
    exact_job job = exact_make(task, EK_F64);
    ek_device_list devices = ek_devices(EK_HOST, 2);
    CHECK(job.model, "%s", ek_error_message());
    if (how == BALANCED)
        job.model = ek_data_parallel_model(job.model, .device_ids = devices);
    job.model = how == CLASSIC
                    ? ek_distributed_data_parallel(job.model, .device_ids = devices, .shard = shard,
                                                   .offload = offload)
                    : ek_distributed_data_parallel(job.model, .shard = shard, .offload = offload,
                                                   .bucket_cap_mb = 0.0005);
    CHECK(job.model, "%s", ek_error_message());
    for (int i = 0; i < 2 && job.criteria[i]; i++) {
        if (how == BALANCED)
            job.criteria[i] = ek_data_parallel_criterion(job.criteria[i], .device_ids = devices);
        job.criteria[i] = ek_distributed_criterion(job.criteria[i]);
        CHECK(job.criteria[i], "%s", ek_error_message());
    }
    ek_optimizer *optimizer =
        task % 2 ? ek_sgd(job.model, .lr = 0.1, .momentum = 0.9) : ek_adam(job.model, .lr = 0.02);
    CHECK(optimizer, "%s", ek_error_message());
    return (training){job, optimizer};
}

static void training_free(training *t)
{
    ek_optimizer_free(t->optimizer);
    exact_free(&t->job);
}

/* Rank r has r + 1 samples; rank 1 has none in the second step. */
static double train(training *t, int step)
{
    double number = 0;
    ek_scope scope = ek_scope_begin();
    int64_t count = step == 1 && job_rank == 1 ? 0 : job_rank + 1;
    ek_zero_grad(t->optimizer);
    ek_tensor *loss = exact_loss(&t->job, 4 * job_rank + 20 * step, count);
    CHECK(loss, "%s", ek_error_message());
    CHECK_OK(ek_backward(loss));
    CHECK_OK(ek_step(t->optimizer));
    CHECK_OK(ek_item(loss, &number));
    ek_scope_end(&scope);
    return number;
}

/* ---- comparing ---- */

typedef struct list {
    ek_tensor *tensors[MOST];
    int count;
} list;

static int list_add(const char *path, ek_tensor *tensor, void *user)
{
    list *l = user;
    (void)path;
    l->tensors[l->count++] = tensor;
    return 0;
}

static bool same_bits(ek_tensor *a, ek_tensor *b)
{
    if (!a || !b)
        return !a && !b;
    double first[2000], second[2000];
    int64_t count = ek_tensor_count(a);
    size_t nbytes = (size_t)count * sizeof *first;
    CHECK(count <= 2000 && ek_tensor_count(b) == count, "%d elements", (int)count);
    CHECK_OK(ek_to_data(ek_detach(a), first, nbytes));
    CHECK_OK(ek_to_data(ek_detach(b), second, nbytes));
    for (int64_t i = 0; i < count; i++)
        CHECK(first[i] == first[i], "element %d is NaN", (int)i);
    return memcmp(first, second, nbytes) == 0;
}

static void compare(const training *whole, const training *sharded, const char *when)
{
    list a = {0}, b = {0};
    ek_scope scope = ek_scope_begin();
    CHECK_OK(ek_module_parameters(whole->job.model, list_add, &a));
    CHECK_OK(ek_module_parameters(sharded->job.model, list_add, &b));
    CHECK(a.count == b.count && a.count > 0, "%d and %d parameters", a.count, b.count);
    for (int i = 0; i < a.count; i++) {
        CHECK(same_bits(a.tensors[i], b.tensors[i]), "%s: parameter %d", when, i);
        const char *name;
        for (int s = 0; (name = ek_optimizer_state_name(whole->optimizer, s)); s++)
            CHECK(same_bits(ek_optimizer_state(whole->optimizer, a.tensors[i], name),
                            ek_optimizer_state(sharded->optimizer, b.tensors[i], name)),
                  "%s: %s of parameter %d", when, name, i);
    }
    ek_scope_end(&scope);
}

/* ---- files ---- */

static void file_of_job(char path[64])
{
    int64_t pid = (int64_t)getpid();
    ek_tensor *number = ek_scalar((double)pid, EK_F64, ek_cpu());
    double of_all = 0;
    CHECK_OK(ek_dist_broadcast(number, 0));
    CHECK_OK(ek_item(number, &of_all));
    snprintf(path, 64, "/tmp/evenkeel-shard-%lld", (long long)of_all);
}

/* Both are set back to the file's state, the whole one too. */
static void save_and_load(training *whole, training *sharded)
{
    char path[64];
    ek_scope scope = ek_scope_begin();
    file_of_job(path);
    ek_archive *archive = ek_archive_new();
    CHECK_OK(ek_archive_put_module(archive, "model", sharded->job.model));
    CHECK_OK(
        ek_archive_put_optimizer(archive, "optimizer", sharded->optimizer, sharded->job.model));
    CHECK_OK(ek_dist_archive_save(archive, path, job_size - 1, NULL));
    ek_archive_free(archive);
    train(whole, 7);
    train(sharded, 8);
    archive = ek_archive_open(path);
    CHECK(archive, "%s", ek_error_message());
    for (int k = 0; k < 2; k++) {
        training *t = k ? sharded : whole;
        CHECK_OK(ek_archive_load_module(archive, "model", t->job.model));
        CHECK_OK(ek_archive_load_optimizer(archive, "optimizer", t->optimizer, t->job.model));
    }
    ek_archive_free(archive);
    CHECK_OK(ek_dist_barrier());
    if (job_rank == 0)
        unlink(path);
    ek_scope_end(&scope);
}

static void check(exact_task task, way how, ek_shard_policy policy, ek_offload_policy offload)
{
    training whole = training_new(task, how, EK_SHARD_NONE, EK_OFFLOAD_NONE);
    training sharded = training_new(task, how, policy, offload);
    for (int step = 0; step < STEPS; step++) {
        double first = train(&whole, step), second = train(&sharded, step);
        CHECK(first == second, "task %d, way %d, policy %d, step %d: losses %.17g and %.17g", task,
              how, policy, step, first, second);
        compare(&whole, &sharded, "after a step");
    }
    save_and_load(&whole, &sharded);
    if (policy != EK_SHARD_PARAMETERS) /* whose writes come to all ranks with the next forward */
        compare(&whole, &sharded, "after loading");
    train(&whole, STEPS);
    train(&sharded, STEPS);
    compare(&whole, &sharded, "after going on");
    training_free(&whole);
    training_free(&sharded);
}

int main(void)
{
    CHECK_OK(ek_host_devices_configure("2"));
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    for (int task = 0; task < EXACT_TASKS; task++)
        for (int how = 0; how < WAYS; how++)
            for (int k = 0; k < 4; k++)
                check((exact_task)task, (way)how, k / 2 ? EK_SHARD_PARAMETERS : EK_SHARD_OPTIMIZER,
                      k % 2 ? EK_OFFLOAD_OPTIMIZER : EK_OFFLOAD_NONE);
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}
