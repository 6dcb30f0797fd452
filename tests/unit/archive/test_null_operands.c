/* NULL for each operand of every public function but those of ranks. Rows of all functions are made
 * from the headers by null_calls. Here are rows whose other operands have to be chosen by hand, so
 * that the call gets as far as NULL. */
#define NULL_CALLS 1000
#include "null_setup.h"

#include "null_calls.h"

NAMES_DEVICES

static ek_tensor *an_index(void)
{
    return ek_zeros(EK_SHAPE(2, 2), EK_I64);
}

/* ---- operands ---- */

CALL(ek_device_parse(OR_NULL("cpu"), OR_NULL(&room.device)));
CALL((ek_error(EK_E_USER, "x"), ek_print_error(NOTHING)));
CALL(ek_error_set(EK_E_USER, NOTHING, 1, "x"));
CALL(ek_error_set(EK_E_USER, "x", 1, NOTHING, 0));
CALL(ek_progress_step(OR_NULL(a_progress()), 1, OR_NULL("x %d"), 1));
CALL(ek_progress_print(OR_NULL(a_progress()), OR_NULL("x %d"), 1));
CALL(ek_value_get(ek_value_dict(entries(), 2), NOTHING));
CALL(ek_check_abi_of(EK_ABI, NOTHING));
CALL(ek_einsum(OR_NULL("i"), OR_NULL(room.tensors), 1));
CALL(ek_scatter_dim(a_tensor(), 0, an_index(), NOTHING));
CALL(ek_index_add(a_tensor(), 0, an_index(), NOTHING, 1));
CALL(ek_index_copy(a_tensor(), 0, an_index(), NOTHING));
CALL(ek_bincount(an_index(), NOTHING, 1));
CALL(ek_quantile(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_nanquantile(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_chunk(a_tensor(), 2, 0, NOTHING, 2));
CALL(ek_rotary_tables(2, 2, 0, OR_NULL(room.tensors), OR_NULL(room.tensors)));
CALL(ek_f_ctc_loss(ek_ones(EK_SHAPE(2, 2, 2)), OR_NULL(a_tensor()), OR_NULL(a_tensor()),
                   OR_NULL(a_tensor())));
CALL(ek_f_triplet_margin_loss(a_tensor(), a_tensor(), NOTHING));
CALL(ek_module_list_append(ek_sequential(a_module()), NOTHING));
CALL(ek_optimizer_get(OR_NULL(an_optimizer()), 0, OR_NULL("lr"), OR_NULL(room.reals)));
CALL(ek_clip_grad_norm(OR_NULL(an_optimizer()), 1, OR_NULL(room.reals)));
CALL(ek_transformed_alike_of(OR_NULL(a_dataset()), OR_NULL((const ek_field_transforms[2]){{0}}),
                             2));

/* ---- options ---- */

CALL(ek_from_data_with(room.text, (ek_tensor_options){0}));
CALL(ek_save_image_with("/nowhere/at/all", (ek_grid_options){0}));
CALL(ek_train_step_with(room.reals, (ek_train_options){0}));
CALL(ek_var_mean_with(OR_NULL(&room.tensors[0]), (ek_variance_options){.x = OR_NULL(a_tensor())}));
CALL(ek_f_pairwise_distance_with((ek_pairwise_distance_options){.x = OR_NULL(a_tensor()),
                                                                .y = OR_NULL(a_tensor())}));
CALL(ek_f_cosine_similarity_with((ek_cosine_similarity_options){.x = OR_NULL(a_tensor()),
                                                                .y = OR_NULL(a_tensor())}));
CALL(ek_archive_load_module_with((ek_load_options){.name = "x"}));
CALL(ek_archive_load_module_with((ek_load_options){.archive = an_archive(), .name = OR_NULL("x")}));
CALL(ek_archive_load_module_with((ek_load_options){.archive = an_archive(), .name = "x"}));
CALL(ek_token_dataset_with((ek_token_options){.length = 2}));

/* ---- extremes, and calls of which nothing may be NULL ---- */

CALL(ek_transformer_with((ek_transformer_options){.nhead = -1}));
CALL(ek_gpt2_with((ek_gpt2_options){.heads = -1}));
CALL(ek_pad_picture_with((ek_pad_picture_options){.padding = -1}));
CALL(ek_random_erasing_with((ek_erasing_options){.channels = 1}));
CALL(ek_color_jitter_with((ek_jitter_options){.hue = 1}));
CALL(ek_random_rotation_with((ek_rotation_options){.degrees = -1}));
CALL(ek_random_affine_with((ek_affine_options){.degrees = -1}));
CALL(ek_random_perspective_with((ek_perspective_options){.p = 2}));
CALL(ek_auto_augment_with((ek_auto_augment_options){.policy = EK_POLICY_SVHN + 1}));
CALL(ek_rand_augment_with((ek_rand_augment_options){.num_ops = -1}));
CALL(ek_trivial_augment_wide_with((ek_trivial_augment_options){.num_magnitude_bins = -1}));
CALL(ek_adaptive_max_pool1d(0, true));
CALL(ek_adaptive_max_pool2d(0, 0, true));
CALL(ek_adaptive_max_pool3d(0, 0, 0, true));
CALL(ek_pixel_shuffle(0));
CALL(ek_module_remove_hook(a_module(), 0));
CALL(ek_tensor_remove_hook(a_tensor(), 0));
CALL(ek_f_rrelu(NOTHING, 0, 1, false));
CALL(ek_optimizer_add_group(an_optimizer(), tensors(), 2));
CALL(ek_scope_return(&room.scope, a_tensor()));
CALL(ek_function_apply_user(&a_function, tensors(), 2, room.tensors, room.text));
