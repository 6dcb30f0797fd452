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
CALL(ek_scatter_fill(NOTHING, 0, a_tensor(), 1));
CALL(ek_scatter_fill(a_tensor(), 0, NOTHING, 1));
CALL(ek_index_add(NOTHING, 0, a_tensor(), a_tensor(), 1));
CALL(ek_index_add(a_tensor(), 0, NOTHING, a_tensor(), 1));
CALL(ek_index_add(a_tensor(), 0, an_index(), NOTHING, 1));
CALL(ek_index_copy(NOTHING, 0, a_tensor(), a_tensor()));
CALL(ek_index_copy(a_tensor(), 0, NOTHING, a_tensor()));
CALL(ek_index_copy(a_tensor(), 0, an_index(), NOTHING));
CALL(ek_index_fill(NOTHING, 0, a_tensor(), 1));
CALL(ek_index_fill(a_tensor(), 0, NOTHING, 1));
CALL(ek_index(NOTHING, room.tensors, 1));
CALL(ek_index(a_tensor(), NOTHING, 1));
CALL(ek_index_put(NOTHING, room.tensors, 1, a_tensor(), 1));
CALL(ek_index_put(a_tensor(), NOTHING, 1, a_tensor(), 1));
CALL(ek_slice_scatter(NOTHING, a_tensor(), 0, 0, 1, 1));
CALL(ek_slice_scatter(a_tensor(), NOTHING, 0, 0, 1, 1));
CALL(ek_select_scatter(NOTHING, a_tensor(), 0, 0));
CALL(ek_select_scatter(a_tensor(), NOTHING, 0, 0));
CALL(ek_sort(NOTHING, 0, false, room.tensors));
CALL(ek_argsort(NOTHING, 0, false));
CALL(ek_topk(NOTHING, 1, 0, true, room.tensors));
CALL(ek_kthvalue(NOTHING, 1, 0, true, room.tensors));
CALL(ek_median(NOTHING));
CALL(ek_nanmedian(NOTHING));
CALL(ek_median_dim(NOTHING, 0, true, room.tensors));
CALL(ek_nanmedian_dim(NOTHING, 0, true, room.tensors));
CALL(ek_quantile(NOTHING, a_tensor()));
CALL(ek_quantile(a_tensor(), NOTHING));
CALL(ek_nanquantile(NOTHING, a_tensor()));
CALL(ek_nanquantile_with((ek_quantile_options){0}));
CALL(ek_nonzero(NOTHING));
CALL(ek_masked_select(NOTHING, a_tensor()));
CALL(ek_masked_select(a_tensor(), NOTHING));
CALL(ek_masked_fill(NOTHING, a_tensor(), 1));
CALL(ek_masked_fill(a_tensor(), NOTHING, 1));
CALL(ek_unique(NOTHING, room.tensors, room.tensors));
CALL(ek_searchsorted(NOTHING, a_tensor(), true));
CALL(ek_searchsorted(a_tensor(), NOTHING, true));
CALL(ek_bucketize(NOTHING, a_tensor(), true));
CALL(ek_bucketize(a_tensor(), NOTHING, true));
CALL(ek_bincount(NOTHING, a_tensor(), 1));
CALL(ek_bincount(an_index(), NOTHING, 1));
CALL(ek_multinomial(NOTHING, 1, true, NULL));
CALL(ek_flip(NOTHING, a_shape));
CALL(ek_roll(NOTHING, a_shape, a_shape));
CALL(ek_repeat(NOTHING, a_shape));
CALL(ek_tile(NOTHING, a_shape));
CALL(ek_repeat_interleave(NOTHING, 1, 0));
CALL(ek_repeat_interleave_by(NOTHING, a_tensor(), 0));
CALL(ek_repeat_interleave_by(a_tensor(), NOTHING, 0));
CALL(ek_tril(NOTHING, 0));
CALL(ek_triu(NOTHING, 0));
CALL(ek_diagonal(NOTHING, 0, 0, 1));
CALL(ek_diag(NOTHING, 0));
CALL(ek_movedim(NOTHING, 0, 1));
CALL(ek_f_unflatten(NOTHING, 0, a_shape));
CALL(ek_unbind(NOTHING, 0, room.tensors, 2));
CALL(ek_unbind(a_tensor(), 0, NOTHING, 2));
CALL(ek_meshgrid(NOTHING, 1, EK_IJ, room.tensors));
CALL(ek_meshgrid(room.tensors, 1, EK_IJ, NOTHING));
CALL(ek_f_pad(NOTHING, numbers, 2, EK_PAD_CONSTANT, 0));
CALL(ek_f_pad(a_tensor(), NOTHING, 2, EK_PAD_CONSTANT, 0));
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
CALL(ek_bmm(NOTHING, a_tensor()));
CALL(ek_bmm(a_tensor(), NOTHING));
CALL(ek_outer(NOTHING, a_tensor()));
CALL(ek_outer(a_tensor(), NOTHING));
CALL(ek_einsum(NOTHING, room.tensors, 1));
CALL(ek_einsum("i", NOTHING, 1));
CALL(ek_cdist(NOTHING, a_tensor(), 2));
CALL(ek_cdist(a_tensor(), NOTHING, 2));
CALL(ek_f_pairwise_distance_with((ek_pairwise_distance_options){.y = a_tensor()}));
CALL(ek_f_pairwise_distance_with((ek_pairwise_distance_options){.x = a_tensor()}));
CALL(ek_f_cosine_similarity_with((ek_cosine_similarity_options){.y = a_tensor()}));
CALL(ek_f_cosine_similarity_with((ek_cosine_similarity_options){.x = a_tensor()}));
CALL(ek_f_normalize_with((ek_normalize_options){0}));
