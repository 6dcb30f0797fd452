/* checkpoint.c: a checkpoint of several ranks: rank 0 saves, all load it to their own devices and
 * train on, rank 0 removes it.
 *
 *     samples/mpirun -n 2 build/samples/checkpoint */
#include <evenkeel/evenkeel.h>
#include <stdlib.h>

#include "../args.h"

#define OPTIONS(ROW)                                                   \
    ROW(text, file, "/tmp/model.checkpoint", "FILE", "the checkpoint") \
    ROW(device, device, "which kind of devices")
args_declare(OPTIONS);

typedef struct training {
    int rank;
    ek_device device; /* this rank's: as many devices as ranks, where there are */
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
} training;

static int training_open(training *run, const ek_device_list *devices)
{
    run->rank = ek_dist_get_rank(NULL);
    run->device = devices->devices[ek_dist_local_rank() % devices->count];
    ek_manual_seed(42);
    run->model =
        ek_distributed_data_parallel(ek_sequential(ek_linear(10, 10), ek_relu(), ek_linear(10, 5)),
                                     .device_ids = {1, {run->device}});
    run->criterion = ek_mse_loss();
    run->optimizer = run->model ? ek_sgd(run->model, .lr = 0.001) : NULL;
    return run->optimizer && run->criterion ? 0 : ek_error_status();
}

/* Called by all ranks. Rank 0 writes. */
static int training_save(const training *run, ek_tensor *input, const char *path)
{
    ek_archive *archive = ek_archive_new();
    int rc = ek_archive_put_module(archive, "model", run->model);
    if (rc == 0)
        rc = ek_archive_put(archive, "input", ek_value_of_tensor(input));
    /* A rank that has failed by itself tells the others, who are about to wait for it. */
    rc = rc < 0 ? ek_dist_raise() : ek_dist_archive_save(archive, path, 0);
    ek_archive_free(archive);
    return rc;
}

/* Loads the module where it is, and the tensor, which lay on rank 0's device, on this rank's. */
static ek_tensor *training_load(training *run, ek_device device_of_rank_0, const char *path)
{
    ek_archive *archive = ek_dist_archive_open(path, 0, NULL); /* only rank 0 needs the file */
    ek_device_map map = {1, {{device_of_rank_0, run->device}}};
    ek_tensor *input = NULL;
    if (ek_archive_load_module(archive, "model", run->model) == 0)
        input = ek_archive_tensor(archive, "input", &map);
    ek_archive_free(archive);
    return input;
}

static int training_step(training *run, ek_tensor *input)
{
    char name[16];
    ek_tensor *outputs = ek_apply(run->model, input);
    ek_tensor *loss = ek_loss(run->criterion, outputs, ek_randn(EK_SHAPE(20, 5)));
    if (ek_minimize(run->optimizer, loss) < 0)
        return ek_error_status();
    printf("Rank %d trained on %s\n", run->rank, ek_device_name(ek_tensor_device(outputs), name));
    return 0;
}

static int run_training(training *run, const ek_device_list *devices, const char *path)
{
    if (training_open(run, devices) < 0)
        return ek_error_status();
    ek_tensor *input = ek_to_device(ek_randn(EK_SHAPE(20, 10)), run->device);
    if (training_save(run, input, path) < 0)
        return ek_error_status();
    input = training_load(run, devices->devices[0], path);
    if (!input || training_step(run, input) < 0 || ek_dist_barrier() < 0)
        return ek_error_status();
    if (run->rank == 0 && remove(path) != 0)
        return ek_error(EK_E_IO, "%s cannot be removed", path);
    return 0;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv, "Saves, loads and removes a checkpoint of several ranks.\n\n",
                       option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    training run = {0};
    ek_scope scope = ek_scope_begin();
    rc = ek_dist_init_process_group();
    if (rc == 0) {
        /* Of host devices each process has its own: as many as there are processes here. */
        ek_device_list devices =
            devices_open(opt.device, opt.device == EK_HOST ? ek_dist_local_size() : 0);
        rc = devices.count > 0 ? run_training(&run, &devices, opt.file) : ek_error_status();
        ek_dist_raise();
    }
    if (rc < 0)
        ek_dist_print_error(stderr);
    ek_optimizer_free(run.optimizer);
    ek_module_free(run.criterion);
    ek_module_free(run.model);
    ek_scope_end(&scope);
    return ek_shutdown() < 0 || rc < 0 ? FAILED : 0;
}
