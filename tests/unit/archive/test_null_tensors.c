/* NULL for each operand of what works on tensors. */
#include "null_setup.h"

/* ---- device.h ---- */

CALL(ek_device_list_of(NOTHING, 2));
CALL(ek_device_name(ek_host(0), NOTHING));
CALL(ek_device_parse(NOTHING, &room.device));
CALL(ek_device_parse("cpu", NOTHING));
CALL(ek_host_devices_configure(NOTHING));
CALL(ek_cuda_devices_configure(NOTHING));
CALL(ek_memory_get_stats(ek_host(0), NOTHING));
CALL(ek_keyword_is_written(NOTHING, "lr", 0));
CALL(ek_keyword_is_written(".lr = 0", NOTHING, 0));
CALL(ek_parse_bytes(NOTHING, &room.nbytes));
CALL(ek_parse_bytes("1", NOTHING));

/* ---- status.h ---- */

CALL(ek_error_take(NOTHING));
CALL(ek_error_raise(NOTHING));
CALL((ek_error(EK_E_USER, "x"), ek_print_error(NOTHING)));
CALL(ek_error_set(EK_E_USER, NOTHING, 1, "x"));
CALL(ek_error_set(EK_E_USER, "x", 1, NOTHING));
CALL(ek_set_log(NULL, room.text));

/* ---- scope.h ---- */

CALL(ek_scope_end(NOTHING));
CALL(ek_scope_return(NOTHING, a_tensor()));
CALL(ek_scope_return(&room.scope, NOTHING));
CALL(ek_scope_return(&room.scope, a_tensor()));
CALL(ek_keep(NOTHING));
CALL(ek_release(NOTHING));

/* ---- tensor.h ---- */

CALL(ek_shape_count(NOTHING));
CALL(ek_shape_equal(NOTHING, &a_shape));
CALL(ek_shape_equal(&a_shape, NOTHING));
CALL(ek_shape_text(NOTHING, room.text));
CALL(ek_shape_text(&a_shape, NOTHING));
CALL(ek_empty_with((ek_tensor_options){0}));
CALL(ek_zeros_with((ek_tensor_options){0}));
CALL(ek_ones_with((ek_tensor_options){0}));
CALL(ek_full_with(1, (ek_tensor_options){0}));
CALL(ek_from_data_with(NOTHING, (ek_tensor_options){0}));
CALL(ek_from_data_with(room.text, (ek_tensor_options){0}));
CALL(ek_tensor_dtype(NOTHING));
CALL(ek_tensor_device(NOTHING));
CALL(ek_tensor_shape(NOTHING));
CALL(ek_tensor_strides(NOTHING));
CALL(ek_tensor_ndim(NOTHING));
CALL(ek_tensor_size(NOTHING, 0));
CALL(ek_tensor_count(NOTHING));
CALL(ek_tensor_is_contiguous(NOTHING, (ek_memory_format)0));
CALL(ek_tensor_version(NOTHING));
CALL(ek_item(NOTHING, room.reals));
CALL(ek_item(a_tensor(), NOTHING));
CALL(ek_to_data(NOTHING, room.text, 8));
CALL(ek_to_data(a_tensor(), NOTHING, 8));
CALL(ek_set_data(NOTHING, room.text, 8));
CALL(ek_set_data(a_tensor(), NOTHING, 8));
CALL(ek_tensor_data(NOTHING));
CALL(ek_tensor_touch(NOTHING));
CALL(ek_tensor_print(NOTHING, stdout));
CALL(ek_tensor_print(a_tensor(), NOTHING));

/* ---- value.h ---- */

CALL(ek_value_of_tensor(NOTHING));
CALL(ek_value_of_pointer(NOTHING));
CALL(ek_value_list(NOTHING, 2));
CALL(ek_value_per_device(NOTHING, 2));
CALL(ek_value_dict(NOTHING, 2));
CALL(ek_value_get(ek_value_dict(entries(), 2), NOTHING));
CALL(ek_scope_return_value(NOTHING, EK_VALUE(a_tensor())));

/* ---- random.h ---- */

CALL(ek_generator_free(NOTHING));
CALL(ek_generator_seed(NOTHING, 1));
CALL(ek_generator_set_engine(NOTHING, 0));
CALL(ek_generator_engine(NOTHING));
CALL(ek_generator_get_state(NOTHING, room.text, 8));
CALL(ek_generator_get_state(a_generator(), NOTHING, 8));
CALL(ek_generator_set_state(NOTHING, room.text, 8));
CALL(ek_generator_set_state(a_generator(), NOTHING, 8));
CALL(ek_random_u32(NOTHING));
CALL(ek_random_u64(NOTHING));
CALL(ek_uniform_(NOTHING, 1, 1, a_generator()));
CALL(ek_uniform_(a_tensor(), 1, 1, NOTHING));
CALL(ek_normal_(NOTHING, 1, 1, a_generator()));
CALL(ek_normal_(a_tensor(), 1, 1, NOTHING));
CALL(ek_random_(NOTHING, 1, 1, a_generator()));
CALL(ek_random_(a_tensor(), 1, 1, NOTHING));
CALL(ek_bernoulli_(NOTHING, 1, a_generator()));
CALL(ek_bernoulli_(a_tensor(), 1, NOTHING));
CALL(ek_rand_with((ek_tensor_options){0}));
CALL(ek_randn_with((ek_tensor_options){0}));
CALL(ek_randint_with(1, 1, (ek_tensor_options){0}));
CALL(ek_randperm(2, NOTHING, a_generator()));
CALL(ek_randperm(2, room.numbers, NOTHING));

/* ---- precision.h ---- */

CALL(ek_autocast_end(NOTHING));

/* ---- autograd.h ---- */

CALL(ek_tensor_requires_grad(NOTHING));
CALL(ek_tensor_set_requires_grad(NOTHING, 1));
CALL(ek_tensor_is_leaf(NOTHING));
CALL(ek_tensor_grad(NOTHING));
CALL(ek_tensor_set_grad(NOTHING, a_tensor()));
CALL(ek_tensor_set_grad(a_tensor(), NOTHING));
CALL(ek_gather_grad(NOTHING));
CALL(ek_detach(NOTHING));
CALL(ek_backward_with((ek_backward_options){0}));
CALL(ek_grad_with((ek_grad_options){0}));
CALL(ek_gradcheck_with((ek_gradcheck_options){0}));
CALL(ek_gradgradcheck_with((ek_gradcheck_options){0}));

/* ---- function.h ---- */

CALL(ek_function_apply_user(NOTHING, tensors(), 2, room.tensors, room.text));
CALL(ek_function_apply_user(&a_function, NOTHING, 2, room.tensors, room.text));
CALL(ek_function_apply_user(&a_function, tensors(), 2, NOTHING, room.text));
CALL(ek_function_apply_user(&a_function, tensors(), 2, room.tensors, NOTHING));
CALL(ek_function_apply_user(&a_function, tensors(), 2, room.tensors, room.text));
CALL(ek_function_save(NOTHING, tensors(), 2));
CALL(ek_function_saved(NOTHING, 0));
CALL(ek_function_needs(NOTHING, 0));
CALL(ek_function_user(NOTHING));

/* ---- ops.h ---- */

CALL(ek_add(NOTHING, a_tensor()));
CALL(ek_add(a_tensor(), NOTHING));
CALL(ek_sub(NOTHING, a_tensor()));
CALL(ek_sub(a_tensor(), NOTHING));
CALL(ek_mul(NOTHING, a_tensor()));
CALL(ek_mul(a_tensor(), NOTHING));
CALL(ek_div(NOTHING, a_tensor()));
CALL(ek_div(a_tensor(), NOTHING));
CALL(ek_maximum(NOTHING, a_tensor()));
CALL(ek_maximum(a_tensor(), NOTHING));
CALL(ek_minimum(NOTHING, a_tensor()));
CALL(ek_minimum(a_tensor(), NOTHING));
CALL(ek_add_scaled(NOTHING, a_tensor(), 1));
CALL(ek_add_scaled(a_tensor(), NOTHING, 1));
CALL(ek_add_scalar(NOTHING, 1));
CALL(ek_mul_scalar(NOTHING, 1));
CALL(ek_pow_scalar(NOTHING, 1));
CALL(ek_neg(NOTHING));
CALL(ek_abs(NOTHING));
CALL(ek_sqrt(NOTHING));
CALL(ek_square(NOTHING));
CALL(ek_reciprocal(NOTHING));
CALL(ek_exp(NOTHING));
CALL(ek_log(NOTHING));
CALL(ek_sign(NOTHING));
CALL(ek_clamp(NOTHING, 1, 1));
CALL(ek_eq(NOTHING, a_tensor()));
CALL(ek_eq(a_tensor(), NOTHING));
CALL(ek_ne(NOTHING, a_tensor()));
CALL(ek_ne(a_tensor(), NOTHING));
CALL(ek_lt(NOTHING, a_tensor()));
CALL(ek_lt(a_tensor(), NOTHING));
CALL(ek_le(NOTHING, a_tensor()));
CALL(ek_le(a_tensor(), NOTHING));
CALL(ek_gt(NOTHING, a_tensor()));
CALL(ek_gt(a_tensor(), NOTHING));
CALL(ek_ge(NOTHING, a_tensor()));
CALL(ek_ge(a_tensor(), NOTHING));
CALL(ek_where(NOTHING, a_tensor(), a_tensor()));
CALL(ek_where(a_tensor(), NOTHING, a_tensor()));
CALL(ek_where(a_tensor(), a_tensor(), NOTHING));
CALL(ek_add_(NOTHING, a_tensor()));
CALL(ek_add_(a_tensor(), NOTHING));
CALL(ek_add_scaled_(NOTHING, a_tensor(), 1));
CALL(ek_add_scaled_(a_tensor(), NOTHING, 1));
CALL(ek_mul_(NOTHING, a_tensor()));
CALL(ek_mul_(a_tensor(), NOTHING));
CALL(ek_mul_scalar_(NOTHING, 1));
CALL(ek_fill_(NOTHING, 1));
CALL(ek_copy_(NOTHING, a_tensor()));
CALL(ek_copy_(a_tensor(), NOTHING));
CALL(ek_f_relu(NOTHING));
CALL(ek_f_leaky_relu(NOTHING, 1));
CALL(ek_f_sigmoid(NOTHING));
CALL(ek_f_tanh(NOTHING));
CALL(ek_f_softplus(NOTHING));
CALL(ek_f_gelu(NOTHING, EK_GELU_NONE));
CALL(ek_ndtr(NOTHING));
CALL(ek_logsumexp(NOTHING));
CALL(ek_f_softmax(NOTHING, 0));
CALL(ek_f_log_softmax(NOTHING, 0));
CALL(ek_f_dropout(NOTHING, 1, 1));
CALL(ek_sum_with((ek_reduce_options){0}));
CALL(ek_mean_with((ek_reduce_options){0}));
CALL(ek_norm_with((ek_reduce_options){0}));
CALL(ek_var_with((ek_reduce_options){0}));
CALL(ek_std_with((ek_reduce_options){0}));
CALL(ek_max_dim(NOTHING, 0, 1));
CALL(ek_min_dim(NOTHING, 0, 1));
CALL(ek_argmax(NOTHING, 0, 1));
CALL(ek_sum_to(NOTHING, a_shape));
CALL(ek_reshape(NOTHING, a_shape));
CALL(ek_f_flatten(NOTHING, 1, 1));
CALL(ek_unsqueeze(NOTHING, 0));
CALL(ek_squeeze(NOTHING, 0));
CALL(ek_permute(NOTHING, a_shape));
CALL(ek_transpose(NOTHING, 0, 1));
CALL(ek_slice(NOTHING, 0, 0, 1, 1));
CALL(ek_narrow(NOTHING, 0, 0, 1));
CALL(ek_select(NOTHING, 0, 0));
CALL(ek_expand(NOTHING, a_shape));
CALL(ek_contiguous(NOTHING, (ek_memory_format)0));
CALL(ek_clone(NOTHING));
CALL(ek_to_dtype(NOTHING, EK_F32));
CALL(ek_to_device(NOTHING, ek_host(0)));
CALL(ek_cat(NOTHING, 2, 0));
CALL(ek_stack(NOTHING, 2, 0));
CALL(ek_split(NOTHING, 1, 0, room.tensors, 2));
CALL(ek_split(a_tensor(), 1, 0, NOTHING, 2));
CALL(ek_chunk(NOTHING, 2, 0, room.tensors, 2));
CALL(ek_chunk(a_tensor(), 2, 0, NOTHING, 2));
CALL(ek_split_sizes(NOTHING, numbers, 2, 0, room.tensors));
CALL(ek_split_sizes(a_tensor(), NOTHING, 2, 0, room.tensors));
CALL(ek_split_sizes(a_tensor(), numbers, 2, 0, NOTHING));
CALL(ek_chunk_sizes(1, 2, NOTHING));
CALL(ek_index_select(NOTHING, 0, a_tensor()));
CALL(ek_index_select(a_tensor(), 0, NOTHING));
CALL(ek_gather_dim(NOTHING, 0, a_tensor()));
CALL(ek_gather_dim(a_tensor(), 0, NOTHING));
CALL(ek_scatter_add_dim(NOTHING, 0, a_tensor(), a_shape));
CALL(ek_scatter_add_dim(a_tensor(), 0, NOTHING, a_shape));
CALL(ek_matmul(NOTHING, a_tensor()));
CALL(ek_matmul(a_tensor(), NOTHING));
CALL(ek_f_linear(NOTHING, a_tensor(), a_tensor()));
CALL(ek_f_linear(a_tensor(), NOTHING, a_tensor()));
CALL(ek_f_linear(a_tensor(), a_tensor(), NOTHING));
CALL(ek_f_conv1d_with((ek_conv_options){0}));
CALL(ek_f_conv2d_with((ek_conv_options){0}));
CALL(ek_f_conv3d_with((ek_conv_options){0}));
CALL(ek_f_conv_transpose1d_with((ek_conv_options){0}));
CALL(ek_f_conv_transpose2d_with((ek_conv_options){0}));
CALL(ek_f_conv_transpose3d_with((ek_conv_options){0}));
CALL(ek_f_max_pool1d_with((ek_pool_options){0}));
CALL(ek_f_max_pool2d_with((ek_pool_options){0}));
CALL(ek_f_max_pool3d_with((ek_pool_options){0}));
CALL(ek_f_avg_pool1d_with((ek_pool_options){0}));
CALL(ek_f_avg_pool2d_with((ek_pool_options){0}));
CALL(ek_f_avg_pool3d_with((ek_pool_options){0}));
CALL(ek_f_adaptive_avg_pool1d(NOTHING, 1));
CALL(ek_f_adaptive_avg_pool2d(NOTHING, 1, 1));
CALL(ek_f_adaptive_avg_pool3d(NOTHING, 1, 1, 1));
CALL(ek_f_upsample(NOTHING, 1, 1, (ek_upsample_mode)0, 1));
CALL(ek_f_batch_norm_with((ek_batch_norm_options){0}));
CALL(ek_f_layer_norm(NOTHING, 1, a_tensor(), a_tensor(), 1));
CALL(ek_f_layer_norm(a_tensor(), 1, NOTHING, a_tensor(), 1));
CALL(ek_f_layer_norm(a_tensor(), 1, a_tensor(), NOTHING, 1));
CALL(ek_f_group_norm(NOTHING, 1, a_tensor(), a_tensor(), 1));
CALL(ek_f_group_norm(a_tensor(), 1, NOTHING, a_tensor(), 1));
CALL(ek_f_group_norm(a_tensor(), 1, a_tensor(), NOTHING, 1));
CALL(ek_f_instance_norm(NOTHING, a_tensor(), a_tensor(), 1));
CALL(ek_f_instance_norm(a_tensor(), NOTHING, a_tensor(), 1));
CALL(ek_f_instance_norm(a_tensor(), a_tensor(), NOTHING, 1));
CALL(ek_f_nll_loss_with((ek_loss_options){0}));
CALL(ek_f_cross_entropy_with((ek_loss_options){0}));
CALL(ek_f_mse_loss_with((ek_loss_options){0}));
CALL(ek_f_l1_loss_with((ek_loss_options){0}));
CALL(ek_f_bce_with_logits_with((ek_loss_options){0}));
CALL(ek_target_weight(NOTHING, a_tensor(), 1, EK_F32));
CALL(ek_target_weight(a_tensor(), NOTHING, 1, EK_F32));

/* ---- comm.h ---- */

CALL(ek_broadcast(NOTHING, devices(), room.tensors));
CALL(ek_broadcast(a_tensor(), NOTHING, room.tensors));
CALL(ek_broadcast(a_tensor(), devices(), NOTHING));
CALL(ek_broadcast_coalesced(NOTHING, 2, devices(), 1, room.tensors));
CALL(ek_broadcast_coalesced(tensors(), 2, NOTHING, 1, room.tensors));
CALL(ek_broadcast_coalesced(tensors(), 2, devices(), 1, NOTHING));
CALL(ek_reduce_add(NOTHING, 2, ek_host(0)));
CALL(ek_reduce_add_coalesced(NOTHING, 2, 2, ek_host(0), 1, room.tensors));
CALL(ek_reduce_add_coalesced(tensors(), 2, 2, ek_host(0), 1, NOTHING));
CALL(ek_scatter(NOTHING, devices(), numbers, 0, room.tensors));
CALL(ek_scatter(a_tensor(), NOTHING, numbers, 0, room.tensors));
CALL(ek_scatter(a_tensor(), devices(), NOTHING, 0, room.tensors));
CALL(ek_scatter(a_tensor(), devices(), numbers, 0, NOTHING));
CALL(ek_gather(NOTHING, 2, ek_host(0), 0));
CALL(ek_reduce_add(NOTHING, 2, ek_cpu()));
CALL(ek_allreduce(NOTHING, 1, 2, room.tensors));
CALL(ek_allreduce(tensors(), 1, 2, NOTHING));
CALL(ek_scatter_value(EK_VALUE(a_tensor()), NOTHING, numbers, 0, room.values));
CALL(ek_scatter_value(EK_VALUE(a_tensor()), devices(), NOTHING, 0, room.values));
CALL(ek_scatter_value(EK_VALUE(a_tensor()), devices(), numbers, 0, NOTHING));
CALL(ek_gather_value(NOTHING, 2, ek_host(0), 0));
