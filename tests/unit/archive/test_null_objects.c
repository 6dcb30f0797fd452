/* NULL for each operand of what works on modules, data, archives and reports. */
#include "null_setup.h"

NAMES_DEVICES

/* ---- module.h ---- */

CALL(ek_module_new(NOTHING));
CALL(ek_module_free(NOTHING));
CALL(ek_register_parameter(OR_NULL(a_module()), OR_NULL("x"), OR_NULL(room.tensors),
                           OR_NULL(a_tensor())));
CALL(ek_register_buffer(OR_NULL(a_module()), OR_NULL("x"), OR_NULL(room.tensors),
                        OR_NULL(a_tensor())));
CALL(ek_register_module(OR_NULL(a_module()), OR_NULL("x"), OR_NULL(room.modules),
                        OR_NULL(a_module())));
CALL(ek_module_finish(NOTHING));
CALL(ek_module_forward(OR_NULL(a_module()), OR_NULL(args())));
CALL(ek_apply(OR_NULL(a_module()), OR_NULL(a_tensor())));
CALL(ek_arg_tensor(NOTHING, 0));
CALL(ek_arg(NOTHING, 0));
CALL(ek_module_parameters(OR_NULL(a_module()), OR_NULL(visit), OR_NULL(room.text)));
CALL(ek_module_buffers(OR_NULL(a_module()), OR_NULL(visit), OR_NULL(room.text)));
CALL(ek_module_child(NOTHING, 0));
CALL(ek_module_tensor(OR_NULL(a_module()), OR_NULL("/nowhere/at/all")));
CALL(ek_module_numel(NOTHING));
CALL(ek_module_train(NOTHING, 1));
CALL(ek_module_to_device(NOTHING, ek_host(0)));
CALL(ek_module_to_dtype(NOTHING, EK_F32));
CALL(ek_module_zero_grad(NOTHING));
CALL(ek_module_set_requires_grad(NOTHING, 1));
CALL(ek_module_sha256(OR_NULL(a_module()), OR_NULL(room.text)));
CALL(ek_module_copy(NOTHING));
CALL(ek_module_child_name(NOTHING, 0));
CALL(ek_module_at(OR_NULL(a_module()), OR_NULL("x")));
CALL(ek_module_modules(NOTHING, NULL, NOTHING));
CALL(ek_module_modules(a_module(), NULL, NOTHING));
CALL(ek_module_print(OR_NULL(a_module()), OR_NULL(stdout)));
CALL(ek_module_register_forward_pre_hook(NOTHING, NULL, NULL));
CALL(ek_module_register_forward_pre_hook(a_module(), NULL, NULL));
CALL(ek_module_register_forward_hook(NOTHING, NULL, NULL));
CALL(ek_module_register_forward_hook(a_module(), NULL, NULL));
CALL(ek_module_register_full_backward_hook(NOTHING, NULL, NULL));
CALL(ek_module_register_full_backward_hook(a_module(), NULL, NULL));
CALL(ek_module_remove_hook(NOTHING, 1));
CALL(ek_module_remove_hook(a_module(), 0));

/* ---- optim.h ---- */

CALL(ek_sgd_with((ek_sgd_options){0}));
CALL(ek_adam_with((ek_adam_options){0}));
CALL(ek_adamw_with((ek_adamw_options){0}));
CALL(ek_optimizer_free(NOTHING));
CALL(ek_optimizer_add_group(NOTHING, tensors(), 2));
CALL(ek_optimizer_add_group(an_optimizer(), NOTHING, 2));
CALL(ek_optimizer_add_group(an_optimizer(), tensors(), 2));
CALL(ek_optimizer_group_count(NOTHING));
CALL(ek_optimizer_lr(NOTHING, 0));
CALL(ek_optimizer_set(OR_NULL(an_optimizer()), 0, OR_NULL("lr"), 1));
CALL(ek_step(NOTHING));
CALL(ek_step_closure(NOTHING, NULL, NOTHING, NOTHING));
CALL(ek_zero_grad(NOTHING));
CALL(ek_optimizer_state(OR_NULL(an_optimizer()), OR_NULL(a_tensor()), OR_NULL("x")));
CALL(ek_optimizer_has(OR_NULL(an_optimizer()), OR_NULL(a_tensor())));
CALL(ek_optimizer_parameter_count(NOTHING));
CALL(ek_optimizer_steps(OR_NULL(an_optimizer()), OR_NULL(a_tensor())));
CALL(ek_optimizer_set_state(OR_NULL(an_optimizer()), OR_NULL(a_tensor()), 1, OR_NULL(names),
                            OR_NULL(tensors()), 2));
CALL(ek_optimizer_state_name(NOTHING, 0));
CALL(ek_step_lr(NOTHING, 1, 1));
CALL(ek_cosine_annealing_lr(NOTHING, 1, 1));
CALL(ek_schedule_step(NOTHING));
CALL(ek_schedule_steps(NOTHING));
CALL(ek_schedule_set_steps(NOTHING, 1));
CALL(ek_schedule_free(NOTHING));
CALL(ek_clip_grad_norm(OR_NULL(an_optimizer()), 1, OR_NULL(room.reals)));
CALL(ek_clip_grad_value(NOTHING, 1));
CALL(ek_rmsprop_with((ek_rmsprop_options){0}));
CALL(ek_adagrad_with((ek_adagrad_options){0}));
CALL(ek_adadelta_with((ek_adadelta_options){0}));
CALL(ek_adamax_with((ek_adamax_options){0}));
CALL(ek_nadam_with((ek_nadam_options){0}));
CALL(ek_radam_with((ek_radam_options){0}));
CALL(ek_rprop_with((ek_rprop_options){0}));
CALL(ek_asgd_with((ek_asgd_options){0}));
CALL(ek_lbfgs_with((ek_lbfgs_options){0}));
CALL(ek_optimizer_get(OR_NULL(an_optimizer()), 0, OR_NULL("lr"), OR_NULL(room.reals)));
CALL(ek_clip_grad_value_of(NOTHING, 2, 1));
CALL(ek_multi_step_lr_of(OR_NULL(an_optimizer()), 1, OR_NULL(numbers), 3));
CALL(ek_exponential_lr(NOTHING, 1));
CALL(ek_constant_lr(NOTHING, 1, 1));
CALL(ek_linear_lr(NOTHING, 1, 1, 1));
CALL(ek_polynomial_lr(NOTHING, 1, 1));
CALL(ek_cosine_annealing_warm_restarts(NOTHING, 1, 1, 0));
CALL(ek_lambda_lr(NOTHING, NULL, NOTHING));
CALL(ek_lambda_lr(an_optimizer(), NULL, NOTHING));
CALL(ek_multiplicative_lr(NOTHING, NULL, NOTHING));
CALL(ek_multiplicative_lr(an_optimizer(), NULL, NOTHING));
CALL(ek_one_cycle_lr_with((ek_one_cycle_lr_options){0}));
CALL(ek_cyclic_lr_with((ek_cyclic_lr_options){0}));
CALL(ek_reduce_lr_on_plateau_with((ek_reduce_lr_on_plateau_options){0}));
CALL(ek_schedule_step_measure(NOTHING, 1));
CALL(ek_sequential_lr(NOTHING, 2, numbers));
CALL(ek_chained_lr_of(NOTHING, 2));
CALL(ek_warm_up_lr(NOTHING, 1, 1, NOTHING));
CALL(ek_warm_up_lr(an_optimizer(), 1, 1, NOTHING));

/* ---- ema.h ---- */

CALL(ek_ema_new_with((ek_ema_options){0}));
CALL(ek_ema_free(NOTHING));
CALL(ek_ema_update(NOTHING));
CALL(ek_ema_updates(NOTHING));
CALL(ek_ema_apply(NOTHING));
CALL(ek_ema_restore(NOTHING));
CALL(ek_ema_copy_to(OR_NULL(ek_ema_new(a_module())), OR_NULL(a_module())));
CALL(ek_ema_tensor(OR_NULL(ek_ema_new(a_module())), OR_NULL("x")));
CALL(ek_archive_put_ema(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(ek_ema_new(a_module()))));
CALL(ek_archive_load_ema(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(ek_ema_new(a_module()))));
CALL(ek_archive_put_training(OR_NULL(an_archive()), OR_NULL("x"),
                             (ek_training_state){.model = a_module()}));
CALL(ek_archive_load_training(OR_NULL(an_archive()), OR_NULL("x"),
                              (ek_training_state){.model = a_module()}));

/* ---- scaler.h ---- */

CALL(ek_grad_scaler_free(NOTHING));
CALL(ek_grad_scaler_scale(OR_NULL(a_scaler()), OR_NULL(a_tensor())));
CALL(ek_grad_scaler_unscale(OR_NULL(a_scaler()), OR_NULL(an_optimizer())));
CALL(ek_grad_scaler_step(OR_NULL(a_scaler()), OR_NULL(an_optimizer())));
CALL(ek_grad_scaler_update(NOTHING));
CALL(ek_grad_scaler_factor(NOTHING));
CALL(ek_grad_scaler_tracker(NOTHING));
CALL(ek_grad_scaler_skipped(NOTHING));
CALL(ek_grad_scaler_set(NOTHING, 1, 0));

/* ---- archive.h ---- */

CALL(ek_archive_free(NOTHING));
CALL(ek_archive_put(OR_NULL(an_archive()), OR_NULL("x"), EK_VALUE(a_tensor())));
CALL(ek_archive_put_text(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL("x")));
CALL(ek_archive_put_module(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_module())));
CALL(ek_archive_put_optimizer(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(an_optimizer()),
                              OR_NULL(a_module())));
CALL(ek_archive_put_schedule(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_schedule())));
CALL(ek_archive_put_grad_scaler(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_scaler())));
CALL(ek_archive_put_random(OR_NULL(an_archive()), OR_NULL("x")));
CALL(ek_archive_put_generator(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_generator())));
CALL(ek_archive_put_plan(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_module())));
CALL(ek_archive_save(OR_NULL(an_archive()), OR_NULL("/nowhere/at/all")));
CALL(ek_archive_open(NOTHING));
CALL(ek_archive_has(OR_NULL(an_archive()), OR_NULL("x")));
CALL(ek_archive_get(OR_NULL(an_archive()), OR_NULL("x")));
CALL(ek_archive_get_int(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(room.numbers)));
CALL(ek_archive_get_float(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(room.reals)));
CALL(ek_archive_get_text(OR_NULL(an_archive()), OR_NULL("x")));
CALL(ek_archive_tensor(NOTHING, "x", NOTHING));
CALL(ek_archive_tensor(an_archive(), NOTHING, NOTHING));
CALL(ek_archive_tensor(an_archive(), "x", NOTHING));
CALL(ek_archive_load_module_with((ek_load_options){.name = "x"}));
CALL(ek_archive_load_module_with((ek_load_options){.archive = an_archive()}));
CALL(ek_archive_load_module_with((ek_load_options){.archive = an_archive(), .name = "x"}));
CALL(ek_archive_load_optimizer(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(an_optimizer()),
                               OR_NULL(a_module())));
CALL(ek_archive_load_schedule(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_schedule())));
CALL(ek_archive_load_grad_scaler(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_scaler())));
CALL(ek_archive_load_random(OR_NULL(an_archive()), OR_NULL("x")));
CALL(ek_archive_load_generator(OR_NULL(an_archive()), OR_NULL("x"), OR_NULL(a_generator())));

/* ---- nn.h ---- */

CALL(ek_sequential_of(NOTHING, 2));
CALL(ek_sequential_named_of(NOTHING, 2));
CALL(ek_linear_with((ek_linear_options){0}));
CALL(ek_conv1d_with((ek_conv_module_options){0}));
CALL(ek_conv2d_with((ek_conv_module_options){0}));
CALL(ek_conv3d_with((ek_conv_module_options){0}));
CALL(ek_conv_transpose1d_with((ek_conv_transpose_module_options){0}));
CALL(ek_conv_transpose2d_with((ek_conv_transpose_module_options){0}));
CALL(ek_conv_transpose3d_with((ek_conv_transpose_module_options){0}));
CALL(ek_batch_norm1d_with((ek_batch_norm_module_options){0}));
CALL(ek_batch_norm2d_with((ek_batch_norm_module_options){0}));
CALL(ek_batch_norm3d_with((ek_batch_norm_module_options){0}));
CALL(ek_instance_norm1d_with((ek_instance_norm_module_options){0}));
CALL(ek_instance_norm2d_with((ek_instance_norm_module_options){0}));
CALL(ek_instance_norm3d_with((ek_instance_norm_module_options){0}));
CALL(ek_layer_norm_with((ek_layer_norm_options){0}));
CALL(ek_rms_norm_with((ek_rms_norm_options){0}));
CALL(ek_embedding_with((ek_embedding_module_options){0}));
CALL(ek_multihead_attention_with((ek_multihead_attention_options){0}));
CALL(ek_transformer_encoder_layer_with((ek_transformer_layer_options){0}));
CALL(ek_transformer_decoder_layer_with((ek_transformer_layer_options){0}));
CALL(ek_transformer_encoder_with((ek_transformer_stack_options){0}));
CALL(ek_transformer_decoder_with((ek_transformer_stack_options){0}));
CALL(ek_transformer_with((ek_transformer_options){.nhead = -1}));
CALL(ek_gpt2_with((ek_gpt2_options){.heads = -1}));
CALL(ek_group_norm_with((ek_group_norm_options){0}));
CALL(ek_rnn_with((ek_rnn_options){0}));
CALL(ek_lstm_with((ek_lstm_options){0}));
CALL(ek_gru_with((ek_gru_options){0}));
CALL(ek_rnn_cell_with((ek_rnn_cell_options){0}));
CALL(ek_lstm_cell_with((ek_cell_options){0}));
CALL(ek_gru_cell_with((ek_cell_options){0}));
CALL(ek_max_pool1d_with((ek_max_pool_module_options){0}));
CALL(ek_max_pool2d_with((ek_max_pool_module_options){0}));
CALL(ek_upsample_with((ek_upsample_options){0}));
CALL(ek_max_pool3d_with((ek_max_pool_module_options){0}));
CALL(ek_avg_pool1d_with((ek_avg_pool_module_options){0}));
CALL(ek_avg_pool2d_with((ek_avg_pool_module_options){0}));
CALL(ek_avg_pool3d_with((ek_avg_pool_module_options){0}));
CALL(ek_adaptive_max_pool1d(0, true));
CALL(ek_adaptive_max_pool2d(0, 0, true));
CALL(ek_adaptive_max_pool3d(0, 0, 0, true));
CALL(ek_max_unpool1d_with((ek_unpool_module_options){0}));
CALL(ek_max_unpool2d_with((ek_unpool_module_options){0}));
CALL(ek_max_unpool3d_with((ek_unpool_module_options){0}));
CALL(ek_lp_pool1d_with((ek_lp_pool_module_options){0}));
CALL(ek_lp_pool2d_with((ek_lp_pool_module_options){0}));
CALL(ek_lp_pool3d_with((ek_lp_pool_module_options){0}));
CALL(ek_local_response_norm_with((ek_local_response_norm_options){0}));
CALL(ek_bilinear_with((ek_bilinear_options){0}));
CALL(ek_pixel_shuffle(0));
CALL(ek_parameter_list_of(NOTHING, 2));
CALL(ek_parameter_list_append(OR_NULL(a_module()), OR_NULL(a_tensor())));
CALL(ek_parameter_dict_of(NOTHING, 2));
CALL(ek_spectral_norm_with((ek_spectral_norm_options){0}));
CALL(ek_weight_norm_with((ek_weight_norm_options){0}));
CALL(ek_checkpoint(NOTHING));
CALL(ek_cross_entropy_loss_with((ek_cross_entropy_criterion_options){0}));
CALL(ek_token_cross_entropy_loss_with((ek_cross_entropy_criterion_options){0}));
CALL(ek_nll_loss_with((ek_nll_criterion_options){0}));
CALL(ek_mse_loss_with((ek_criterion_options){0}));
CALL(ek_l1_loss_with((ek_criterion_options){0}));
CALL(ek_bce_with_logits_loss_with((ek_bce_with_logits_criterion_options){0}));
CALL(ek_smooth_l1_loss_with((ek_smooth_l1_criterion_options){0}));
CALL(ek_huber_loss_with((ek_huber_criterion_options){0}));
CALL(ek_bce_loss_with((ek_weighted_criterion_options){0}));
CALL(ek_soft_margin_loss_with((ek_criterion_options){0}));
CALL(ek_multilabel_soft_margin_loss_with((ek_weighted_criterion_options){0}));
CALL(ek_kl_div_loss_with((ek_kl_div_criterion_options){0}));
CALL(ek_poisson_nll_loss_with((ek_poisson_nll_criterion_options){0}));
CALL(ek_gaussian_nll_loss_with((ek_gaussian_nll_criterion_options){0}));
CALL(ek_margin_ranking_loss_with((ek_margin_criterion_options){0}));
CALL(ek_hinge_embedding_loss_with((ek_hinge_embedding_criterion_options){0}));
CALL(ek_cosine_embedding_loss_with((ek_margin_criterion_options){0}));
CALL(ek_triplet_margin_loss_with((ek_triplet_margin_criterion_options){0}));
CALL(ek_multi_margin_loss_with((ek_multi_margin_criterion_options){0}));
CALL(ek_multilabel_margin_loss_with((ek_criterion_options){0}));
CALL(ek_ctc_loss_with((ek_ctc_criterion_options){0}));
CALL(ek_rrelu_with((ek_rrelu_options){0}));
CALL(ek_init_uniform(NOTHING, 1, 1));
CALL(ek_init_normal(NOTHING, 1, 1));
CALL(ek_init_constant(NOTHING, 1));
CALL(ek_init_kaiming_uniform(NOTHING, 1));
CALL(ek_init_kaiming_normal(NOTHING, 1));
CALL(ek_init_xavier_uniform(NOTHING, 1));
CALL(ek_init_kaiming_uniform_with((ek_init_kaiming_options){0}));
CALL(ek_init_kaiming_normal_with((ek_init_kaiming_options){0}));
CALL(ek_init_xavier_normal(NOTHING, 1));
CALL(ek_init_orthogonal(NOTHING, 1));
CALL(ek_init_trunc_normal(NOTHING, 0, 1, -1, 1));
CALL(ek_init_eye(NOTHING));
CALL(ek_init_dirac(NOTHING, 1));
CALL(ek_init_sparse(NOTHING, 0.5, 1));
CALL(ek_module_list_of(NOTHING, 2));
CALL(ek_module_dict_of(NOTHING, 2));
CALL(ek_module_list_append(OR_NULL(ek_sequential(a_module())), OR_NULL(a_module())));
CALL(ek_update_batch_norm(NOTHING, NULL, NOTHING));
CALL(ek_update_batch_norm(a_module(), NULL, NOTHING));

/* ---- plan.h ---- */

CALL(ek_plan_check(NOTHING, 2));

/* ---- parallel.h ---- */

CALL(ek_replicate(OR_NULL(a_module()), OR_NULL(devices()), OR_NULL(room.modules)));
CALL(ek_parallel_apply(OR_NULL(modules()), OR_NULL(args()), 2, OR_NULL(devices()),
                       OR_NULL(room.values)));
CALL(ek_data_parallel_with((ek_data_parallel_options){0}));
CALL(ek_data_parallel_module(NOTHING));
CALL(ek_data_parallel_unwrap(NOTHING));
CALL(ek_data_parallel_get_stats(OR_NULL(a_module()), OR_NULL(&room.parallel)));
CALL(ek_data_parallel_plan(OR_NULL(a_module()), OR_NULL(room.text), 8));
CALL(ek_data_parallel_sizes(OR_NULL(a_module()), 1, OR_NULL(room.numbers)));
CALL(ek_patch_replication_callback(NOTHING));
CALL(ek_sync_batch_norm_with((ek_sync_batch_norm_options){0}));
CALL(ek_convert_sync_batch_norm(NOTHING));
CALL(ek_convert_sync_batch_norm_over(NOTHING, NOTHING));

/* ---- balance.h ---- */

CALL(ek_data_parallel_model_with((ek_data_parallel_options){0}));
CALL(ek_data_parallel_criterion_with((ek_data_parallel_criterion_options){0}));

/* ---- data.h ---- */

CALL(ek_read_idx(NOTHING));
CALL(ek_read_npy(NOTHING));
CALL(ek_read_cifar(OR_NULL("/nowhere/at/all"), 2, OR_NULL(room.tensors), OR_NULL(room.tensors)));
CALL(ek_read_image(NOTHING, 2));
CALL(ek_decode_image(OR_NULL(room.text), 8, 2, OR_NULL("x")));
CALL(ek_make_grid_with((ek_grid_options){0}));
CALL(ek_save_image_with("/nowhere/at/all", (ek_grid_options){0}));
CALL(ek_save_image_with(NOTHING, (ek_grid_options){0}));
CALL(ek_safetensors_save(NOTHING, NOTHING, 2, NOTHING, 2));
CALL(ek_safetensors_save("/nowhere/at/all", NOTHING, 2, NOTHING, 2));
CALL(ek_safetensors_open(NOTHING));
CALL(ek_safetensors_close(NOTHING));
CALL(ek_safetensors_count(NOTHING));
CALL(ek_safetensors_name(NOTHING, 0));
CALL(ek_safetensors_read(NOTHING, "x"));
CALL(ek_safetensors_read(NOTHING, NOTHING));
CALL(ek_safetensors_metadata(NOTHING, "x"));
CALL(ek_safetensors_metadata(NOTHING, NOTHING));

/* ---- dataset.h ---- */

CALL(ek_dataset_new(NOTHING));
CALL(ek_dataset_keep(NOTHING));
CALL(ek_dataset_free(NOTHING));
CALL(ek_dataset_length(NOTHING));
CALL(ek_dataset_get(NOTHING, 0));
CALL(ek_dataset_get_batch(OR_NULL(a_dataset()), OR_NULL(numbers), 2, ek_host(0)));
CALL(ek_collate(NOTHING, 2, ek_host(0)));
CALL(ek_tensor_dataset_of(NOTHING, 2));
CALL(ek_token_dataset_with((ek_token_options){.length = 2}));
CALL(ek_subset(OR_NULL(a_dataset()), OR_NULL(numbers), 2));
CALL(ek_concat_dataset_of(NOTHING, 2));
CALL(ek_random_split(OR_NULL(a_dataset()), OR_NULL(numbers), 2, OR_NULL(a_generator()),
                     OR_NULL(room.datasets)));
CALL(ek_random_split_fractions(OR_NULL(a_dataset()), OR_NULL(reals), 2, OR_NULL(a_generator()),
                               OR_NULL(room.datasets)));
CALL(ek_partition_with(1, (ek_partition_options){0}));
CALL(ek_mnist(NOTHING, 1));
CALL(ek_cifar10(NOTHING, 1));
CALL(ek_cifar100(NOTHING, 1, 1));
CALL(ek_image_folder(NOTHING));
CALL(ek_image_folder_class(NOTHING, 1));
CALL(ek_image_folder_path(NOTHING, 0));

/* ---- gan.h ---- */

CALL(ek_gradient_penalty_with((ek_gradient_penalty_options){0}));
CALL(ek_penalty_points(OR_NULL(a_tensor()), OR_NULL(a_tensor()), (ek_penalty_kind)0,
                       OR_NULL(a_generator())));

/* ---- sampler.h ---- */

CALL(ek_pass_add(NOTHING, 0));
CALL(ek_pass_end_batch(NOTHING));
CALL(ek_pass_free(NOTHING));
CALL(ek_sampler_new(NOTHING));
CALL(ek_sampler_free(NOTHING));
CALL(ek_sampler_length(NOTHING));
CALL(ek_sampler_set_epoch(NOTHING, 1));
CALL(ek_sampler_draw(OR_NULL(a_sampler()), OR_NULL(&room.pass)));
CALL(ek_sampler_next(OR_NULL(a_sampler()), OR_NULL(room.numbers)));
CALL(ek_sampler_next_batch(OR_NULL(a_sampler()), OR_NULL(&room.indices), OR_NULL(room.numbers)));
CALL(ek_sampler_longest(NOTHING));
CALL(ek_sampler_state(NOTHING));
CALL(ek_sampler_load_state(NOTHING, EK_VALUE(a_tensor())));
CALL(ek_random_sampler_with((ek_random_sampler_options){0}));
CALL(ek_subset_random_sampler(OR_NULL(numbers), 2, OR_NULL(a_generator())));
CALL(ek_weighted_random_sampler(OR_NULL(reals), 2, 1, OR_NULL(a_generator())));
CALL(ek_batch_sampler(NOTHING, 1, 1));
CALL(ek_distributed_sampler_with((ek_distributed_sampler_options){0}));
CALL(ek_random_identity_sampler_with((ek_identity_sampler_options){0}));
CALL(ek_distributed_random_identity_sampler_with((ek_distributed_identity_options){0}));

/* ---- loader.h ---- */

CALL(ek_data_loader_with((ek_loader_options){0}));
CALL(ek_loader_free(NOTHING));
CALL(ek_loader_next(OR_NULL(a_loader()), OR_NULL(&room.batch)));
CALL(ek_loader_reset(NOTHING));
CALL(ek_loader_length(NOTHING));
CALL(ek_loader_set_epoch(NOTHING, 1));
CALL(ek_loader_dataset(NOTHING));
CALL(ek_loader_sampler(NOTHING));
CALL(ek_loader_worker(NOTHING));
CALL(ek_loader_get_stats(OR_NULL(a_loader()), OR_NULL(&room.loader)));
CALL(ek_loader_state(NOTHING));
CALL(ek_loader_load_state(NOTHING, EK_VALUE(a_tensor())));

/* ---- report.h ---- */

CALL(ek_report_start_with((ek_report_options){0}));
CALL(ek_report_step(NOTHING));
CALL(ek_report_stop(NOTHING));
CALL(ek_report_free(NOTHING));
CALL(ek_report_name(NOTHING));
CALL(ek_report_device_count(NOTHING));
CALL(ek_report_step_count(NOTHING));
CALL(ek_report_seconds(NOTHING));
CALL(ek_report_step_seconds(NOTHING));
CALL(ek_report_get_device(OR_NULL(a_report()), 0, OR_NULL(&room.report)));
CALL(ek_report_gather(NOTHING));
CALL(ek_report_rank_count(NOTHING));
CALL(ek_report_get_rank(OR_NULL(a_report()), 0, OR_NULL(&room.rank)));
CALL(ek_report_imbalance(NOTHING));
CALL(ek_report_memory(OR_NULL(a_report()), 0, OR_NULL(room.samples), 8));
CALL(ek_report_set_largest_batch(NOTHING, 1));
CALL(ek_report_table(OR_NULL(a_report()), OR_NULL(stdout)));
CALL(ek_report_json(OR_NULL("/nowhere/at/all"), OR_NULL(reports()), 2));
CALL(ek_report_html(OR_NULL("/nowhere/at/all"), OR_NULL(reports()), 2));
CALL(ek_report_html_page(NOTHING, reports(), 2, NOTHING));
CALL(ek_report_html_page("/nowhere/at/all", NOTHING, 2, NOTHING));
CALL(ek_report_html_page("/nowhere/at/all", reports(), 2, NOTHING));
CALL(ek_report_trace(OR_NULL("/nowhere/at/all"), OR_NULL(a_report())));

/* ---- train.h ---- */

CALL(ek_train_step_with(NOTHING, (ek_train_options){0}));
CALL(ek_train_step_with(room.reals, (ek_train_options){0}));
CALL(ek_find_batch_with((ek_find_batch_options){0}));

/* ---- iterable.h ---- */

CALL(ek_iterate(NOTHING, 0));
CALL(ek_iterator_free(NOTHING));
CALL(ek_iterator_next(NOTHING, room.values));
CALL(ek_iterator_skip(NOTHING, 1));
CALL(ek_text_lines(NOTHING));
CALL(ek_token_stream_with((ek_token_stream_options){0}));
CALL(ek_shuffled_with((ek_shuffled_options){0}));

/* ---- transform.h ---- */

CALL(ek_transform_new(NOTHING));
CALL(ek_transform_free(NOTHING));
CALL(ek_transformed_of(OR_NULL(a_dataset()), 0, OR_NULL(transforms()), 2));
CALL(ek_transformed_key_of(OR_NULL(a_dataset()), OR_NULL("x"), OR_NULL(transforms()), 2));
CALL(ek_transformed_alike_of(NOTHING, (const ek_field_transforms[2]){{0}}, 2));
CALL(ek_transformed_alike_of(a_dataset(), (const ek_field_transforms[2]){{0}}, 2));
CALL(ek_transformed_alike_of(a_dataset(), NOTHING, 2));
CALL(ek_transform_apply(OR_NULL(transforms()), 2, OR_NULL(a_tensor()), OR_NULL(a_generator())));
CALL(ek_normalize(OR_NULL(reals), OR_NULL(reals), 2));
CALL(ek_random_crop_with((ek_crop_options){0}));
CALL(ek_center_crop_with((ek_crop_options){0}));
CALL(ek_resize_with((ek_resize_options){0}));
CALL(ek_pad_picture_with((ek_pad_picture_options){.padding = -1}));
CALL(ek_random_resized_crop_with((ek_resized_crop_options){0}));
CALL(ek_random_erasing_with((ek_erasing_options){.channels = 1}));
CALL(ek_color_jitter_with((ek_jitter_options){.hue = 1}));
CALL(ek_gaussian_blur_with((ek_blur_options){0}));
CALL(ek_random_rotation_with((ek_rotation_options){.degrees = -1}));
CALL(ek_random_affine_with((ek_affine_options){.degrees = -1}));
CALL(ek_random_perspective_with((ek_perspective_options){.p = 2}));
CALL(ek_auto_augment_with((ek_auto_augment_options){.policy = EK_POLICY_SVHN + 1}));
CALL(ek_rand_augment_with((ek_rand_augment_options){.num_ops = -1}));
CALL(ek_trivial_augment_wide_with((ek_trivial_augment_options){.num_magnitude_bins = -1}));
CALL(ek_random_apply_of(0.5, NOTHING, 2));
CALL(ek_random_choice_of(OR_NULL(transforms()), 2, OR_NULL(reals)));
CALL(ek_random_order_of(NOTHING, 2));

/* ---- version.h ---- */

CALL(ek_check_abi_of(EK_ABI, NOTHING));
