/* stage_order.c: order and choice, padding, windows, scattering, lists of indices, einsum. */
#include "rows.h"

static ek_tensor *out[4];

static ek_tensor *sorted(ek_tensor *x)
{
    ek_tensor *index = NULL;
    return ek_sort(x, 1, true, &index) ? ek_gather_dim(x, 1, index) : NULL;
}

static ek_tensor *different(ek_tensor *x)
{
    ek_tensor *inverse, *counts;
    return ek_unique(x, &inverse, &counts) ? ek_add(ek_sum(inverse), ek_sum(counts)) : NULL;
}

static ek_tensor *grid(ek_tensor *const *x)
{
    return ek_meshgrid(x, 2, EK_XY, out) < 0 ? NULL : ek_mul(out[0], out[1]);
}

static ek_tensor *apart(ek_tensor *x)
{
    return ek_unbind(x, 0, out, 4) < 0 ? NULL : ek_mul(out[0], out[1]);
}

static ek_tensor *drawn(ek_tensor *x, bool replacement)
{
    ek_manual_seed(3);
    return ek_multinomial(x, 2, replacement, NULL);
}

static ek_tensor *middle(ek_tensor *x, ek_tensor *(*median)(ek_tensor *, int, bool, ek_tensor **))
{
    ek_tensor *index = NULL, *y = median(x, 1, false, &index);
    return y ? ek_add(y, ek_to_dtype(index, EK_F32)) : NULL;
}

static const int64_t margin[] = {1, 1, -1, 2};

#define ORDER(X)                                                                           \
    X(sort, "f2x3", sorted(x[0]))                                                          \
    X(argsort, "f2x3", ek_argsort(x[0], 0, false))                                         \
    X(topk, "f2x9", ek_topk(x[0], 1, 1, true, NULL))                                       \
    X(kthvalue, "f2x3", ek_kthvalue(x[0], 2, 1, false, NULL))                              \
    X(median, "f2x3", ek_median(x[0]))                                                     \
    X(nanmedian, "f2x3", ek_nanmedian(x[0]))                                               \
    X(median_dim, "f2x3", middle(x[0], ek_median_dim))                                     \
    X(nanmedian_dim, "f2x3", middle(x[0], ek_nanmedian_dim))                               \
    X(quantile, "f2x3 f2", ek_quantile(x[0], ek_f_sigmoid(x[1]), EK_DIMS(1)))              \
    X(nanquantile, "f2x3 f2", ek_nanquantile(x[0], ek_f_sigmoid(x[1]), .keepdim = true))   \
    X(nonzero, "b2x3", ek_nonzero(x[0]))                                                   \
    X(masked_select, "f2x3 b3", ek_masked_select(x[0], x[1]))                              \
    X(masked_fill, "f2x3 b3", ek_masked_fill(x[0], x[1], 2))                               \
    X(unique, "i8", different(x[0]))                                                       \
    X(searchsorted, "p4 p1x3", ek_searchsorted(sorted(ek_unsqueeze(x[0], 0)), x[1], true)) \
    X(bucketize, "p2x3 p4", ek_bucketize(x[0], x[1], false))                               \
    X(bincount, "i8", ek_bincount(x[0], NULL, 4))                                          \
    X(bincount_weights, "i8 c8", ek_bincount(x[0], x[1], 0))                               \
    X(multinomial, "p2x3", drawn(x[0], false))                                             \
    X(multinomial_again, "p2x3", drawn(x[0], true))                                        \
    X(arange_step, "f1", ek_mul(x[0], ek_arange_step(0, 1, 0.25, EK_F32, ek_host(0))))     \
    X(linspace, "f1", ek_mul(x[0], ek_linspace(0, 1, 4, EK_F32, ek_host(0))))              \
    X(eye, "f1", ek_mul(x[0], ek_eye(2, 3, EK_F32, ek_host(0))))                           \
    X(likes, "f2x3",                                                                       \
      ek_mul(ek_add(x[0], ek_zeros_like(x[0])),                                            \
             ek_add(ek_ones_like(x[0]), ek_full_like(x[0], 2))))                           \
    X(random_likes, "f2x3",                                                                \
      (ek_manual_seed(1), ek_mul(x[0], ek_add(ek_rand_like(x[0]), ek_randn_like(x[0])))))

ROWS_STAGE(ops_order, ORDER);

#define MOVES(X)                                                                    \
    X(flip, "f2x3", ek_flip(x[0], EK_SHAPE(0, 1)))                                  \
    X(roll, "f2x3", ek_roll(x[0], EK_SHAPE(1, 1), EK_SHAPE(0, 1)))                  \
    X(repeat, "f2x3", ek_repeat(x[0], EK_SHAPE(2, 2)))                              \
    X(tile, "f2x3", ek_tile(x[0], EK_SHAPE(2)))                                     \
    X(repeat_interleave, "f2x3", ek_repeat_interleave(x[0], 2, 1))                  \
    X(repeat_interleave_by, "f4x3 i4", ek_repeat_interleave_by(x[0], x[1], 0))      \
    X(tril, "f3x3", ek_tril(x[0], 0))                                               \
    X(triu, "f3x3", ek_triu(x[0], 1))                                               \
    X(diagonal, "f3x3", ek_diagonal(x[0], 0, 0, 1))                                 \
    X(diag, "f3", ek_diag(x[0], 1))                                                 \
    X(movedim, "f2x3x2", ek_movedim(x[0], 0, 2))                                    \
    X(unflatten, "f2x4", ek_f_unflatten(x[0], 1, EK_SHAPE(2, -1)))                  \
    X(unbind, "f2x3", apart(x[0]))                                                  \
    X(meshgrid, "f2 f3", grid(x))                                                   \
    X(pad, "f2x3", ek_f_pad(x[0], margin, 4, EK_PAD_CONSTANT, 1))                   \
    X(pad_reflect, "f2x3", ek_f_pad(x[0], margin, 2, EK_PAD_REFLECT, 0))            \
    X(unfold, "f2x5", ek_unfold(x[0], 1, 3, 2))                                     \
    X(unfold_pictures, "f1x1x3x3", ek_f_unfold(x[0], 2, .padding = 1))              \
    X(fold, "f1x4x4", ek_f_fold(x[0], 2, .height = 3, .width = 3))                  \
    X(pixel_shuffle, "f1x4x2x2", ek_f_pixel_shuffle(x[0], 2))                       \
    X(pixel_unshuffle, "f1x1x2x2", ek_f_pixel_unshuffle(x[0], 2))                   \
    X(channel_shuffle, "f1x4x2", ek_f_channel_shuffle(x[0], 2))                     \
    X(scatter_dim, "f3x2 i4x2 f4x2", ek_scatter_dim(x[0], 0, x[1], x[2]))           \
    X(scatter_fill, "f3x2 i4x2", ek_scatter_fill(x[0], 0, x[1], 2))                 \
    X(index_add, "f3x2 i4 f4x2", ek_index_add(x[0], 0, x[1], x[2], 2))              \
    X(index_copy, "f3x2 i4 f4x2", ek_index_copy(x[0], 0, x[1], x[2]))               \
    X(index_fill, "f3x2 i4", ek_index_fill(x[0], 0, x[1], 2))                       \
    X(index, "f3x3x2 i4 i4", ek_index(x[0], x + 1, 2))                              \
    X(index_mask, "f3x2 b3x2", ek_index(x[0], x + 1, 1))                            \
    X(index_put, "f3x3 i4 i4 f4", ek_index_put(x[0], x + 1, 2, x[3], true))         \
    X(slice_scatter, "f5x2 f2x2", ek_slice_scatter(x[0], x[1], 0, 1, 4, 2))         \
    X(select_scatter, "f5x2 f2", ek_select_scatter(x[0], x[1], 0, 1))               \
    X(bmm, "f2x2x3 f2x3x2", ek_bmm(x[0], x[1]))                                     \
    X(outer, "f2 f3", ek_outer(x[0], x[1]))                                         \
    X(einsum, "f2x3 f3x4 f4", ek_einsum("ij,jk,k->i", x, 3))                        \
    X(cdist, "f2x3 f4x3", ek_cdist(x[0], x[1], 2))                                  \
    X(cdist_of_many, "f27x2 f2x2", ek_cdist(x[0], x[1], 2))                         \
    X(pairwise_distance, "f2x3 f2x3", ek_f_pairwise_distance(x[0], x[1], .eps = 0)) \
    X(cosine_similarity, "f2x3 f2x3", ek_f_cosine_similarity(x[0], x[1], .eps = 1)) \
    X(normalize, "f2x3", ek_f_normalize(x[0], .eps = 0.1))

ROWS_STAGE(ops_moves, MOVES);
