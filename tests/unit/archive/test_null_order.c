/* NULL for each operand of operations of order, shape, indices and products by name. */
#define NULL_CALLS 70
#include "null_setup.h"

NAMES_DEVICES

static ek_tensor *an_index(void)
{
    return ek_zeros(EK_SHAPE(2, 2), EK_I64);
}

CALL(ek_scatter_dim(NOTHING, 0, a_tensor(), a_tensor()));
CALL(ek_scatter_dim(a_tensor(), 0, NOTHING, a_tensor()));
CALL(ek_scatter_dim(a_tensor(), 0, an_index(), NOTHING));
CALL(ek_scatter_fill(OR_NULL(a_tensor()), 0, OR_NULL(a_tensor()), 1));
CALL(ek_index_add(NOTHING, 0, a_tensor(), a_tensor(), 1));
CALL(ek_index_add(a_tensor(), 0, NOTHING, a_tensor(), 1));
CALL(ek_index_add(a_tensor(), 0, an_index(), NOTHING, 1));
CALL(ek_index_copy(NOTHING, 0, a_tensor(), a_tensor()));
CALL(ek_index_copy(a_tensor(), 0, NOTHING, a_tensor()));
CALL(ek_index_copy(a_tensor(), 0, an_index(), NOTHING));
CALL(ek_index_fill(OR_NULL(a_tensor()), 0, OR_NULL(a_tensor()), 1));
CALL(ek_index(OR_NULL(a_tensor()), OR_NULL(room.tensors), 1));
CALL(ek_index_put(OR_NULL(a_tensor()), OR_NULL(room.tensors), 1, a_tensor(), 1));
CALL(ek_slice_scatter(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 0, 0, 1, 1));
CALL(ek_select_scatter(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 0, 0));
CALL(ek_sort(NOTHING, 0, false, room.tensors));
CALL(ek_argsort(NOTHING, 0, false));
CALL(ek_topk(NOTHING, 1, 0, true, room.tensors));
CALL(ek_kthvalue(NOTHING, 1, 0, true, room.tensors));
CALL(ek_median(NOTHING));
CALL(ek_nanmedian(NOTHING));
CALL(ek_median_dim(NOTHING, 0, true, room.tensors));
CALL(ek_nanmedian_dim(NOTHING, 0, true, room.tensors));
CALL(ek_quantile(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_nanquantile(NOTHING, a_tensor()));
CALL(ek_nanquantile_with((ek_quantile_options){0}));
CALL(ek_nonzero(NOTHING));
CALL(ek_masked_select(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_masked_fill(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 1));
CALL(ek_unique(NOTHING, room.tensors, room.tensors));
CALL(ek_searchsorted(OR_NULL(a_tensor()), OR_NULL(a_tensor()), true));
CALL(ek_bucketize(OR_NULL(a_tensor()), OR_NULL(a_tensor()), true));
CALL(ek_bincount(OR_NULL(an_index()), OR_NULL(a_tensor()), 1));
CALL(ek_multinomial(NOTHING, 1, true, NULL));
CALL(ek_flip(NOTHING, a_shape));
CALL(ek_roll(NOTHING, a_shape, a_shape));
CALL(ek_repeat(NOTHING, a_shape));
CALL(ek_tile(NOTHING, a_shape));
CALL(ek_repeat_interleave(NOTHING, 1, 0));
CALL(ek_repeat_interleave_by(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 0));
CALL(ek_tril(NOTHING, 0));
CALL(ek_triu(NOTHING, 0));
CALL(ek_diagonal(NOTHING, 0, 0, 1));
CALL(ek_diag(NOTHING, 0));
CALL(ek_movedim(NOTHING, 0, 1));
CALL(ek_f_unflatten(NOTHING, 0, a_shape));
CALL(ek_unbind(OR_NULL(a_tensor()), 0, OR_NULL(room.tensors), 2));
CALL(ek_meshgrid(OR_NULL(room.tensors), 1, EK_IJ, OR_NULL(room.tensors)));
CALL(ek_f_pad(OR_NULL(a_tensor()), OR_NULL(numbers), 2, EK_PAD_CONSTANT, 0));
CALL(ek_unfold(NOTHING, 0, 1, 1));
CALL(ek_f_unfold_with((ek_unfold_options){0}));
CALL(ek_f_fold_with((ek_fold_options){0}));
CALL(ek_f_pixel_shuffle(NOTHING, 1));
CALL(ek_f_pixel_unshuffle(NOTHING, 1));
CALL(ek_f_channel_shuffle(NOTHING, 1));
CALL(ek_full_like(NOTHING, 1));
CALL(ek_zeros_like(NOTHING));
CALL(ek_ones_like(NOTHING));
CALL(ek_rand_like(NOTHING));
CALL(ek_randn_like(NOTHING));
CALL(ek_bmm(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_outer(OR_NULL(a_tensor()), OR_NULL(a_tensor())));
CALL(ek_einsum(OR_NULL("i"), OR_NULL(room.tensors), 1));
CALL(ek_cdist(OR_NULL(a_tensor()), OR_NULL(a_tensor()), 2));
CALL(ek_f_pairwise_distance_with((ek_pairwise_distance_options){.y = a_tensor()}));
CALL(ek_f_pairwise_distance_with((ek_pairwise_distance_options){.x = a_tensor()}));
CALL(ek_f_cosine_similarity_with((ek_cosine_similarity_options){.y = a_tensor()}));
CALL(ek_f_cosine_similarity_with((ek_cosine_similarity_options){.x = a_tensor()}));
CALL(ek_f_normalize_with((ek_normalize_options){0}));
