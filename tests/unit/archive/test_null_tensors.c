/* NULL for each operand of what works on tensors. */
#include "null_setup.h"

NAMES_DEVICES

/* ---- device.h ---- */

CALL(ek_device_list_of(NOTHING, 2));
CALL(ek_device_name(ek_host(0), NOTHING));
CALL(ek_device_parse(OR_NULL("cpu"), OR_NULL(&room.device)));
CALL(ek_host_devices_configure(NOTHING));
CALL(ek_cuda_devices_configure(NOTHING));
CALL(ek_memory_get_stats(ek_host(0), NOTHING));
CALL(ek_parse_bytes(OR_NULL("1"), OR_NULL(&room.nbytes)));

/* ---- status.h ---- */

CALL(ek_error_take(NOTHING));
CALL(ek_error_raise(NOTHING));
CALL((ek_error(EK_E_USER, "x"), ek_print_error(NOTHING)));
CALL(ek_error_set(EK_E_USER, OR_NULL("x"), 1, OR_NULL("x")));
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
CALL(ek_shape_equal(OR_NULL(&a_shape), OR_NULL(&a_shape)));
CALL(ek_shape_text(OR_NULL(&a_shape), OR_NULL(room.text)));
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
CALL(ek_item(OR_NULL(a_tensor()), OR_NULL(room.reals)));
CALL(ek_to_data(OR_NULL(a_tensor()), OR_NULL(room.text), 8));
CALL(ek_set_data(OR_NULL(a_tensor()), OR_NULL(room.text), 8));
CALL(ek_tensor_data(NOTHING));
CALL(ek_tensor_touch(NOTHING));
CALL(ek_tensor_print(OR_NULL(a_tensor()), OR_NULL(stdout)));

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
CALL(ek_generator_get_state(OR_NULL(a_generator()), OR_NULL(room.text), 8));
CALL(ek_generator_set_state(OR_NULL(a_generator()), OR_NULL(room.text), 8));
CALL(ek_random_u32(NOTHING));
CALL(ek_random_u64(NOTHING));
CALL(ek_uniform_(OR_NULL(a_tensor()), 1, 1, OR_NULL(a_generator())));
CALL(ek_normal_(OR_NULL(a_tensor()), 1, 1, OR_NULL(a_generator())));
CALL(ek_random_(OR_NULL(a_tensor()), 1, 1, OR_NULL(a_generator())));
CALL(ek_bernoulli_(OR_NULL(a_tensor()), 1, OR_NULL(a_generator())));
CALL(ek_rand_with((ek_tensor_options){0}));
CALL(ek_randn_with((ek_tensor_options){0}));
CALL(ek_randint_with(1, 1, (ek_tensor_options){0}));
CALL(ek_randperm(2, OR_NULL(room.numbers), OR_NULL(a_generator())));

/* ---- precision.h ---- */

CALL(ek_autocast_end(NOTHING));

/* ---- autograd.h ---- */

CALL(ek_tensor_requires_grad(NOTHING));
CALL(ek_tensor_set_requires_grad(NOTHING, 1));
CALL(ek_tensor_is_leaf(NOTHING));
CALL(ek_tensor_grad(NOTHING));
CALL(ek_tensor_set_grad(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
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

CALL(ek_add(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_sub(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_mul(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_div(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_maximum(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_minimum(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_add_scaled(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
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
CALL(ek_eq(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_ne(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_lt(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_le(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_gt(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_ge(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_where(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_add_(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_add_scaled_(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_mul_(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_mul_scalar_(NOTHING, 1));
CALL(ek_fill_(NOTHING, 1));
CALL(ek_copy_(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
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
CALL(ek_f_scaled_dot_product_attention_with((ek_attention_options){0}));
CALL(ek_f_embedding_with((ek_embedding_options){0}));
CALL(ek_f_rms_norm(OR_NULL(a_tensor()), 1, OR_NULL(a_tensor()), 1));
CALL(ek_f_rotary(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor()), EK_ROTARY_HALVES));
CALL(ek_rotary_tables(2, 2, 0, OR_NULL(room.tensors), OR_NULL(room.tensors)));
CALL(ek_sum_with((ek_reduce_options){0}));
CALL(ek_mean_with((ek_reduce_options){0}));
CALL(ek_norm_with((ek_p_norm_options){0}));
CALL(ek_var_with((ek_variance_options){0}));
CALL(ek_std_with((ek_variance_options){0}));
CALL(ek_max_dim(NOTHING, 0, 1));
CALL(ek_min_dim(NOTHING, 0, 1));
CALL(ek_argmax(NOTHING, 0, 1));
CALL(ek_sum_to(NOTHING, a_shape));
CALL(ek_sub_scalar(NOTHING, 1));
CALL(ek_rsub_scalar(NOTHING, 1));
CALL(ek_fmod_scalar(NOTHING, 1));
CALL(ek_remainder_scalar(NOTHING, 1));
CALL(ek_div_scalar(NOTHING, 1));
CALL(ek_sin(NOTHING));
CALL(ek_cos(NOTHING));
CALL(ek_tan(NOTHING));
CALL(ek_asin(NOTHING));
CALL(ek_acos(NOTHING));
CALL(ek_atan(NOTHING));
CALL(ek_sinh(NOTHING));
CALL(ek_cosh(NOTHING));
CALL(ek_asinh(NOTHING));
CALL(ek_acosh(NOTHING));
CALL(ek_atanh(NOTHING));
CALL(ek_erf(NOTHING));
CALL(ek_erfc(NOTHING));
CALL(ek_log1p(NOTHING));
CALL(ek_expm1(NOTHING));
CALL(ek_log2(NOTHING));
CALL(ek_log10(NOTHING));
CALL(ek_exp2(NOTHING));
CALL(ek_rsqrt(NOTHING));
CALL(ek_floor(NOTHING));
CALL(ek_ceil(NOTHING));
CALL(ek_round(NOTHING));
CALL(ek_trunc(NOTHING));
CALL(ek_frac(NOTHING));
CALL(ek_eq_scalar(NOTHING, 1));
CALL(ek_ne_scalar(NOTHING, 1));
CALL(ek_lt_scalar(NOTHING, 1));
CALL(ek_le_scalar(NOTHING, 1));
CALL(ek_gt_scalar(NOTHING, 1));
CALL(ek_ge_scalar(NOTHING, 1));
CALL(ek_logical_not(NOTHING));
CALL(ek_isnan(NOTHING));
CALL(ek_isinf(NOTHING));
CALL(ek_isfinite(NOTHING));
CALL(ek_clamp_(NOTHING, 0, 1));
CALL(ek_max(NOTHING));
CALL(ek_min(NOTHING));
CALL(ek_cumsum(NOTHING, 0));
CALL(ek_logcumsumexp(NOTHING, 0));
CALL(ek_f_rrelu(NOTHING, 0, 1, true));
CALL(ek_f_rrelu(NOTHING, 0, 1, false));
CALL(ek_cumprod(NOTHING, 0));
CALL(ek_argmin(NOTHING, 0, 1));
CALL(ek_f_silu(NOTHING));
CALL(ek_f_mish(NOTHING));
CALL(ek_f_elu(NOTHING, 1));
CALL(ek_f_celu(NOTHING, 1));
CALL(ek_f_selu(NOTHING));
CALL(ek_f_relu6(NOTHING));
CALL(ek_f_hardtanh(NOTHING, 0, 1));
CALL(ek_f_hardsigmoid(NOTHING));
CALL(ek_f_hardswish(NOTHING));
CALL(ek_f_hardshrink(NOTHING, 1));
CALL(ek_f_softshrink(NOTHING, 1));
CALL(ek_f_tanhshrink(NOTHING));
CALL(ek_f_softsign(NOTHING));
CALL(ek_f_log_sigmoid(NOTHING));
CALL(ek_f_threshold(NOTHING, 0, 1));
CALL(ek_f_glu(NOTHING, 0));
CALL(ek_f_softmin(NOTHING, 0));
CALL(ek_pow(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_atan2(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_fmod(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_remainder(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_lerp_scalar(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_logical_and(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_logical_or(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_logical_xor(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_sub_(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_div_(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_lerp_(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_f_prelu(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_lerp(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_addcmul(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_addcdiv(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_clamp_tensors(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_addcmul_(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_prod_with((ek_reduce_options){0}));
CALL(ek_amax_with((ek_reduce_options){0}));
CALL(ek_amin_with((ek_reduce_options){0}));
CALL(ek_any_with((ek_reduce_options){0}));
CALL(ek_all_with((ek_reduce_options){0}));
CALL(ek_nansum_with((ek_reduce_options){0}));
CALL(ek_var_mean_with(&room.tensors[0], (ek_variance_options){0}));
CALL(ek_var_mean_with(NOTHING, (ek_variance_options){.x = a_tensor()}));
CALL(ek_nan_to_num_with((ek_nan_to_num_options){0}));
CALL(ek_f_softplus_with((ek_softplus_options){0}));
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
CALL(ek_pad_sequence(NOTHING, 2, true, 0));
CALL(ek_split(OR_NULL(a_tensor()), 1, 0, OR_NULL(room.tensors), 2));
CALL(ek_chunk(OR_NULL(a_tensor()), 2, 0, OR_NULL(room.tensors), 2));
CALL(ek_split_sizes(OR_NULL(a_tensor()), OR_NULL(numbers), 2, 0, OR_NULL(room.tensors)));
CALL(ek_chunk_sizes(1, 2, NOTHING));
CALL(ek_index_select(OR_NULL(a_tensor()), 0, OR_NULL(a_tensor())));
CALL(ek_gather_dim(OR_NULL(a_tensor()), 0, OR_NULL(a_tensor())));
CALL(ek_scatter_add_dim(OR_NULL(a_tensor()), 0, OR_NULL(a_tensor()), a_shape));
CALL(ek_matmul(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_f_linear(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_f_conv1d_with((ek_conv_options){0}));
CALL(ek_f_conv2d_with((ek_conv_options){0}));
CALL(ek_f_conv3d_with((ek_conv_options){0}));
CALL(ek_f_conv_transpose1d_with((ek_conv_transpose_options){0}));
CALL(ek_f_conv_transpose2d_with((ek_conv_transpose_options){0}));
CALL(ek_f_conv_transpose3d_with((ek_conv_transpose_options){0}));
CALL(ek_f_max_pool1d_with((ek_max_pool_options){0}));
CALL(ek_f_max_pool2d_with((ek_max_pool_options){0}));
CALL(ek_f_max_pool3d_with((ek_max_pool_options){0}));
CALL(ek_f_avg_pool1d_with((ek_avg_pool_options){0}));
CALL(ek_f_avg_pool2d_with((ek_avg_pool_options){0}));
CALL(ek_f_avg_pool3d_with((ek_avg_pool_options){0}));
CALL(ek_f_adaptive_avg_pool1d(NOTHING, 1));
CALL(ek_f_adaptive_avg_pool2d(NOTHING, 1, 1));
CALL(ek_f_adaptive_avg_pool3d(NOTHING, 1, 1, 1));
CALL(ek_tensor_register_hook(NOTHING, NULL, NULL));
CALL(ek_tensor_register_hook(a_tensor(), NULL, NULL));
CALL(ek_tensor_remove_hook(NOTHING, 1));
CALL(ek_tensor_remove_hook(a_tensor(), 0));
CALL(ek_vjp_with((ek_functional_options){0}));
CALL(ek_jvp_with((ek_functional_options){0}));
CALL(ek_jacobian_with((ek_functional_options){0}));
CALL(ek_hessian_with((ek_functional_options){0}));
CALL(ek_f_adaptive_max_pool1d(NOTHING, 1, room.tensors));
CALL(ek_f_adaptive_max_pool2d(NOTHING, 1, 1, room.tensors));
CALL(ek_f_adaptive_max_pool3d(NOTHING, 1, 1, 1, room.tensors));
CALL(ek_f_max_unpool1d_with((ek_unpool_options){0}));
CALL(ek_f_max_unpool2d_with((ek_unpool_options){0}));
CALL(ek_f_max_unpool3d_with((ek_unpool_options){0}));
CALL(ek_f_lp_pool1d_with((ek_lp_pool_options){0}));
CALL(ek_f_lp_pool2d_with((ek_lp_pool_options){0}));
CALL(ek_f_lp_pool3d_with((ek_lp_pool_options){0}));
CALL(ek_f_local_response_norm(NOTHING, 1, 1, 1, 1));
CALL(ek_f_bilinear(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor()),
                   OR_NULL(a_tensor())));
CALL(ek_f_upsample(NOTHING, 1, 1, (ek_upsample_mode)0, 1));
CALL(ek_f_interpolate_with((ek_interpolate_options){0}));
CALL(ek_f_grid_sample_with((ek_grid_sample_options){0}));
CALL(ek_f_affine_grid(NOTHING, EK_SHAPE(1, 1, 1, 1), 1));
CALL(ek_f_batch_norm_with((ek_batch_norm_options){0}));
CALL(ek_f_layer_norm(OR_NULL(a_tensor()), 1, OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_f_group_norm(OR_NULL(a_tensor()), 1, OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_f_instance_norm(OR_NULL(a_tensor()), OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_f_nll_loss_with((ek_nll_loss_options){0}));
CALL(ek_f_cross_entropy_with((ek_cross_entropy_options){0}));
CALL(ek_f_token_cross_entropy_with((ek_cross_entropy_options){0}));
CALL(ek_f_mse_loss_with((ek_loss_options){0}));
CALL(ek_f_l1_loss_with((ek_loss_options){0}));
CALL(ek_f_bce_with_logits_with((ek_bce_with_logits_options){0}));
CALL(ek_f_bce_with((ek_bce_options){0}));
CALL(ek_f_soft_margin_loss_with((ek_loss_options){0}));
CALL(ek_f_multilabel_soft_margin_loss_with((ek_bce_options){0}));
CALL(ek_f_multilabel_margin_loss_with((ek_loss_options){0}));
CALL(ek_f_smooth_l1_loss_with((ek_smooth_l1_options){0}));
CALL(ek_f_huber_loss_with((ek_huber_options){0}));
CALL(ek_f_kl_div_with((ek_kl_div_options){0}));
CALL(ek_f_poisson_nll_loss_with((ek_poisson_nll_options){0}));
CALL(ek_f_gaussian_nll_loss_with((ek_gaussian_nll_options){0}));
CALL(ek_f_margin_ranking_loss_with((ek_margin_ranking_options){0}));
CALL(ek_f_cosine_embedding_loss_with((ek_cosine_embedding_options){0}));
CALL(ek_f_hinge_embedding_loss_with((ek_hinge_embedding_options){0}));
CALL(ek_f_triplet_margin_loss_with((ek_triplet_margin_options){0}));
CALL(ek_f_multi_margin_loss_with((ek_multi_margin_options){0}));
CALL(ek_f_ctc_loss_with((ek_ctc_options){0}));
CALL(ek_f_triplet_margin_loss(a_tensor(), a_tensor(), NOTHING));
CALL(ek_f_ctc_loss(ek_ones(EK_SHAPE(2, 2, 2)), OR_NULL(a_tensor()), OR_NULL(a_tensor()),
                   OR_NULL(a_tensor())));
CALL(ek_target_weight(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1, EK_F32));

/* ---- comm.h ---- */

CALL(ek_broadcast(OR_NULL(a_tensor()), OR_NULL(devices()), OR_NULL(room.tensors)));
CALL(ek_broadcast_coalesced(OR_NULL(tensors()), 2, OR_NULL(devices()), 1, OR_NULL(room.tensors)));
CALL(ek_reduce_add(NOTHING, 2, ek_host(0)));
CALL(ek_reduce_add_coalesced(OR_NULL(tensors()), 2, 2, ek_host(0), 1, OR_NULL(room.tensors)));
CALL(ek_scatter(OR_NULL(a_tensor()), OR_NULL(devices()), OR_NULL(numbers), 0,
                OR_NULL(room.tensors)));
CALL(ek_gather(NOTHING, 2, ek_host(0), 0));
CALL(ek_reduce_add(NOTHING, 2, ek_cpu()));
CALL(ek_allreduce(OR_NULL(tensors()), 1, 2, OR_NULL(room.tensors)));
CALL(ek_scatter_value(EK_VALUE(a_tensor()), OR_NULL(devices()), OR_NULL(numbers), 0,
                      OR_NULL(room.values)));
CALL(ek_gather_value(NOTHING, 2, ek_host(0), 0));
