/* stage_dist.c: dist.h, ddp.h and spawn.h in a world of one rank, which allocates for itself alone.
 * What several ranks do when one of them fails is tests/unit/distributed's. */
#include "fault.h"

static ek_tensor *numbers(void)
{
    return ek_arange(6, EK_F32, ek_host(0));
}

static int join(void)
{
    return ek_dist_is_initialized() ? 0 : ek_dist_init_process_group(.timeout = 20);
}

static int groups(void)
{
    FAULT_TRY(join());
    ek_process_group *group = ek_dist_new_group(EK_RANKS(0));
    if (!group)
        return ek_error_status();
    fault_note(ek_dist_get_rank(group) + 2 * ek_dist_get_world_size(ek_dist_world()));
    fault_note(ek_dist_group_rank(group, 0) + 2 * ek_dist_global_rank(group, 0));
    fault_note(ek_dist_local_rank() + 2 * ek_dist_local_size());
    fault_note(ek_dist_devices(EK_HOST).count);
    if (!ek_dist_host(0) || ek_dist_host(1))
        fault_broken("the only rank has a host");
    return ek_dist_destroy_process_group(group);
}

static int collectives(void)
{
    ek_tensor *x = numbers(), *y = ek_zeros(EK_SHAPE(6), .device = ek_host(0));
    ek_dist_work *work = NULL;
    FAULT_TRY(join());
    FAULT_TRY(ek_dist_broadcast(x, 0));
    FAULT_TRY(ek_dist_all_reduce(x, .work = &work));
    fault_note(ek_dist_is_completed(work));
    FAULT_TRY(ek_dist_wait(work));
    FAULT_TRY(ek_dist_reduce(x, 0));
    FAULT_TRY(ek_dist_barrier());
    FAULT_TRY(ek_dist_monitored_barrier(1, true, NULL));
    FAULT_TRY(ek_dist_all_gather(x, &y));
    FAULT_TRY(ek_dist_gather(x, &y, 0));
    FAULT_TRY(ek_dist_scatter(y, &x, 0));
    FAULT_TRY(ek_dist_reduce_scatter(y, &x));
    FAULT_TRY(ek_dist_all_to_all(.inputs = &x, .list = &y));
    return fault_note_tensor(y);
}

/* There is nobody to send to. */
static int messages(void)
{
    ek_tensor *x = numbers();
    ek_dist_work *work;
    FAULT_TRY(join());
    if (!x)
        return ek_error_status();
    int refused = (ek_dist_send(x, 0) == EK_E_INVALID) + (ek_dist_send(x, 0, .work = &work) < 0);
    ek_error_clear();
    refused += (ek_dist_recv(x, 0) == EK_E_INVALID) + (ek_dist_recv(x, 0, .work = &work) < 0);
    fault_note(refused + 10 * ek_dist_error_rank());
    ek_error_clear();
    ek_dist_print_error(stderr); /* none is pending */
    return ek_dist_raise();
}

static int values(void)
{
    ek_value all = ek_value_none();
    double number = 3;
    FAULT_TRY(join());
    FAULT_TRY(ek_dist_broadcast_number(&number, 0, NULL));
    FAULT_TRY(ek_dist_all_reduce_number(&number, EK_DIST_SUM, NULL));
    fault_note(number);
    ek_value value = ek_value_dict((const ek_value_entry[]){{"a", EK_VALUE(numbers())},
                                                            {"b", EK_LIST(ek_value_of_int(3))}},
                                   2);
    FAULT_TRY(fault_note_value(ek_dist_broadcast_value(value, 0, NULL)));
    FAULT_TRY(ek_dist_all_gather_value(value, &all, NULL));
    return fault_note_value(all);
}

static int operations(void)
{
    FAULT_TRY(join());
    ek_tensor *x = ek_dist_sum(numbers(), NULL);
    return fault_note_tensor(ek_dist_join(ek_dist_mean(x, NULL), 0, NULL));
}

static int train(ek_module *model)
{
    ek_tensor *x = ek_reshape(numbers(), EK_SHAPE(2, 3));
    ek_distributed_stats stats;
    ek_no_sync no_sync = ek_no_sync_begin(model);
    int status = ek_backward(ek_sum(ek_apply(model, x)));
    ek_module *criterion = ek_distributed_criterion(ek_mse_loss());
    if (status >= 0)
        status = ek_backward(ek_loss(criterion, ek_forward(model, x),
                                     ek_zeros(EK_SHAPE(2, 2), .device = ek_host(0))));
    ek_module_free(criterion);
    ek_no_sync_end(&no_sync);
    FAULT_TRY(status);
    FAULT_TRY(ek_backward(ek_sum(ek_apply(model, x))));
    FAULT_TRY(ek_dist_average_gradients(model, NULL));
    FAULT_TRY(ek_distributed_get_stats(model, &stats));
    fault_note((double)stats.nbytes);
    return fault_note_gradients(model);
}

static int ddp(void)
{
    FAULT_TRY(join());
    ek_set_seed(3);
    ek_module *net =
        ek_sequential(ek_linear(3, 2), ek_sync_batch_norm(2, .process_group = ek_dist_world()));
    if (net && !ek_convert_sync_batch_norm_over(net, ek_dist_world())) {
        ek_module_free(net);
        return ek_error_status();
    }
    if (net && ek_module_to_device(net, ek_host(0)) < 0) {
        ek_module_free(net);
        return ek_error_status();
    }
    ek_module *model = ek_distributed_data_parallel(net);
    int status = model ? train(model) : ek_error_status();
    ek_module_free(model);
    return status;
}

static int save(void)
{
    FAULT_TRY(join());
    ek_archive *archive = ek_archive_new();
    int status = ek_archive_put(archive, "numbers", ek_value_of_tensor(numbers()));
    if (status == 0)
        status = ek_dist_archive_save(archive, fault_path("dist.safetensors"), 0);
    if (status == 0)
        status = ek_dist_archive_save(archive, fault_path("parts.safetensors"), .parts = true);
    ek_archive_free(archive);
    FAULT_TRY(status);
    archive = ek_dist_archive_open(fault_path("parts.safetensors"), 0, NULL);
    ek_archive_free(archive);
    return archive ? 0 : ek_error_status();
}

static int note_rank(int rank, void *user)
{
    fault_note(rank);
    FAULT_TRY(ek_dist_init_process_group());
    return fault_note_tensor(ek_dist_sum(user, NULL));
}

/* Of one process; several are begun by tests/ranks/test_spawn.c. */
static int spawn(void)
{
    ek_spawned *spawned = NULL;
    ek_tensor *x = numbers();
    if (!x)
        return ek_error_status();
    FAULT_TRY(ek_spawn(note_rank, .user = x, .nprocs = 1, .join = false, .result = &spawned));
    int status = ek_spawn_join(spawned, 0);
    return status < 0 ? status : 0;
}

static const struct {
    const char *name;
    int (*attempt)(void);
} rows[] = {
    {"groups", groups},
    {"collectives", collectives},
    {"messages", messages},
    {"values", values},
    {"operations", operations},
    {"ddp", ddp},
    {"save", save},
    {"spawn", spawn},
};

static int dist_attempt(int row)
{
    return rows[row].attempt();
}

static void dist_clear(int row)
{
    ek_dist_destroy_process_group(NULL);
}

FAULT_STAGE(dist, FAULT_ROWS(rows), .attempt = dist_attempt, .clear = dist_clear);
