/* NULL for each operand of what works between ranks, without a world and in one of one rank. */
#define NULL_CALLS 40
#include "archive/null_setup.h"

NAMES_DEVICES

static ek_process_group *world(void)
{
    ek_dist_init_process_group();
    return ek_dist_world();
}

/* ---- dist.h ---- */

CALL(ek_dist_init_process_group_with((ek_dist_options){0}));
CALL(ek_dist_destroy_process_group(NOTHING));
CALL((world(), ek_dist_destroy_process_group(NOTHING)));
CALL(ek_dist_get_rank(NOTHING));
CALL(ek_dist_get_world_size(NOTHING));
CALL(ek_dist_new_group_with((ek_group_options){0}));
CALL((world(), ek_dist_new_group_with((ek_group_options){.count = 1})));
CALL(ek_dist_group_rank(NOTHING, 0));
CALL((world(), ek_dist_group_rank(NOTHING, 0)));
CALL(ek_dist_global_rank(NOTHING, 0));
CALL((world(), ek_dist_global_rank(NOTHING, 0)));
CALL(ek_dist_wait(NOTHING));
CALL(ek_dist_is_completed(NOTHING));
CALL(ek_dist_send_with((ek_dist_message_options){0}));
CALL(ek_dist_send_with((ek_dist_message_options){.group = world()}));
CALL(ek_dist_recv_with((ek_dist_message_options){0}));
CALL(ek_dist_recv_with((ek_dist_message_options){.group = world()}));
CALL(ek_dist_broadcast_with((ek_dist_broadcast_options){0}));
CALL(ek_dist_broadcast_with((ek_dist_broadcast_options){.group = world()}));
CALL(ek_dist_all_reduce_with((ek_dist_all_reduce_options){0}));
CALL(ek_dist_all_reduce_with((ek_dist_all_reduce_options){.group = world()}));
CALL(ek_dist_reduce_with((ek_dist_reduce_options){0}));
CALL(ek_dist_reduce_with((ek_dist_reduce_options){.group = world()}));
CALL(ek_dist_barrier_with((ek_dist_barrier_options){0}));
CALL(ek_dist_monitored_barrier(1, 1, NOTHING));
CALL(ek_dist_all_gather_with((ek_dist_all_gather_options){0}));
CALL(ek_dist_all_gather_with((ek_dist_all_gather_options){.group = world()}));
CALL(ek_dist_all_gather_with((ek_dist_all_gather_options){.group = world(), .tensor = a_tensor()}));
CALL(ek_dist_gather_with((ek_dist_gather_options){.group = world()}));
CALL(ek_dist_gather_with((ek_dist_gather_options){.group = world(), .tensor = a_tensor()}));
CALL(ek_dist_scatter_with((ek_dist_scatter_options){.group = world()}));
CALL(ek_dist_scatter_with((ek_dist_scatter_options){.group = world(), .tensor = a_tensor()}));
CALL(ek_dist_reduce_scatter_with((ek_dist_reduce_scatter_options){.group = world()}));
CALL(ek_dist_reduce_scatter_with((ek_dist_reduce_scatter_options){.group = world(),
                                                                  .tensor = a_tensor()}));
CALL(ek_dist_all_to_all_with((ek_dist_all_to_all_options){.group = world()}));
CALL(ek_dist_all_to_all_with((ek_dist_all_to_all_options){.group = world(), .list = tensors()}));
CALL(ek_dist_broadcast_number(NOTHING, 0, world()));
CALL(ek_dist_broadcast_number(&(double){1}, 0, NOTHING));
CALL(ek_dist_all_reduce_number(NOTHING, EK_DIST_SUM, world()));
CALL(ek_dist_all_reduce_number(&(double){1}, EK_DIST_SUM, NOTHING));
CALL(ek_dist_broadcast_value(EK_VALUE(a_tensor()), 0, NOTHING));
CALL(ek_dist_all_gather_value(EK_VALUE(a_tensor()), NOTHING, world()));
CALL(ek_dist_all_gather_value(EK_VALUE(a_tensor()), room.values, NOTHING));
CALL(ek_dist_sum(NOTHING, world()));
CALL(ek_dist_sum(a_tensor(), NOTHING));
CALL(ek_dist_mean(NOTHING, world()));
CALL(ek_dist_mean(a_tensor(), NOTHING));
CALL(ek_dist_join(NOTHING, 0, world()));
CALL(ek_dist_join(a_tensor(), 0, NOTHING));
CALL(ek_dist_print_error(NOTHING));
CALL((ek_dist_sum(NOTHING, world()), ek_dist_print_error(NOTHING)));

/* ---- ddp.h ---- */

CALL(ek_distributed_data_parallel_with((ek_distributed_options){0}));
CALL(ek_distributed_data_parallel_with((ek_distributed_options){.process_group = world()}));
CALL(ek_distributed_data_parallel_with((ek_distributed_options){.module = a_module()}));
CALL(ek_distributed_criterion_with((ek_distributed_criterion_options){0}));
CALL(ek_distributed_criterion_with((ek_distributed_criterion_options){.process_group = world()}));
CALL(ek_distributed_criterion_with((ek_distributed_criterion_options){.module = a_module()}));
CALL(ek_convert_sync_batch_norm_over(NOTHING, world()));
CALL(ek_no_sync_begin(NOTHING));
CALL(ek_no_sync_begin(a_module()));
CALL(ek_no_sync_end(NOTHING));
CALL(ek_distributed_get_stats(NOTHING, &(ek_distributed_stats){0}));
CALL(ek_distributed_get_stats((world(), ek_distributed_data_parallel(a_module())), NOTHING));
CALL(ek_dist_average_gradients(NOTHING, world()));
CALL(ek_dist_average_gradients(a_module(), NOTHING));
CALL(ek_dist_archive_save(NOTHING, "x", 0, world()));
CALL((world(), ek_dist_archive_save(NOTHING, "x", 0, NOTHING)));
CALL((world(), ek_dist_archive_save(ek_archive_new(), NOTHING, 0, NOTHING)));
CALL((world(), ek_dist_archive_save(NOTHING, "x", .parts = true)));
CALL((world(), ek_dist_archive_save(ek_archive_new(), NOTHING, .parts = true)));
CALL((world(), ek_dist_archive_save_with((ek_dist_archive_options){.parts = true})));
CALL(ek_dist_archive_open(NOTHING, 0, world()));
CALL((world(), ek_dist_archive_open(NOTHING, 0, NOTHING)));

/* ---- spawn.h ---- */

CALL(ek_spawn_with((ek_spawn_options){0}));
CALL(ek_spawn_join(NOTHING, 1));
