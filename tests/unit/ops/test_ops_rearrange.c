/* Order, choice, shapes, indices, and products by subscripts: a row each, against PyTorch's values
 * and gradients and finite differences of first and second order. On GPUs too. */
#include "table.h"

FIXTURE(two_devices, NULL)

FROM(.file = "rearrange.golden", .inputs = {"x0", "x1", "x2", "x3"}, .dy = "g", .tolerance = 2e-6)

enum { MOVES = BF16 | INTEGERS };

static ek_tensor *out[8];

/* The last piece three times, and the first. */
static ek_tensor *pieces(ek_tensor *const *parts, int count)
{
    if (count < 1)
        return NULL;
    return ek_cat((ek_tensor *const[]){ek_mul_scalar(ek_reshape(parts[count - 1], EK_SHAPE(-1)), 3),
                                       ek_reshape(parts[0], EK_SHAPE(-1))},
                  2, 0);
}

/* Twice the first and the second. */
static ek_tensor *grid(ek_tensor *const *x, ek_indexing indexing)
{
    if (ek_meshgrid(x, 2, indexing, out) < 0)
        return NULL;
    return ek_add(ek_mul_scalar(out[0], 2), out[1]);
}

#define PAD(mode, value, ...)                        \
    ek_f_pad(x[0], ((const int64_t[]){__VA_ARGS__}), \
             (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8), mode, value)
#define LIST(...)                        \
    ((ek_tensor *const[]){__VA_ARGS__}), \
        (int)(sizeof((ek_tensor *const[]){__VA_ARGS__}) / sizeof(ek_tensor *))
#define UP INFINITY

ROW(sort, MOVES, ek_sort(x[0], 1, false, NULL))
ROW(sort_descending, MOVES, ek_sort(x[0], -1, true, NULL))
ROW(topk, MOVES, ek_topk(x[0], 3, 1, true, NULL))
ROW(topk_of_many, MOVES, ek_topk(x[0], 5, -1, false, NULL))
ROW(kthvalue, MOVES, ek_kthvalue(x[0], 3, 1, false, NULL))
ROW(kthvalue_keepdim, MOVES, ek_kthvalue(x[0], 2, 0, true, NULL))
ROW(masked_select, MOVES, ek_masked_select(x[0], x[1]))
ROW(masked_select_broadcast, MOVES, ek_masked_select(x[0], x[1]))
ROW(masked_fill, BF16, ek_masked_fill(x[0], x[1], -2.5))
ROW(flip, MOVES, ek_flip(x[0], EK_SHAPE(0, -1)))
ROW(roll, MOVES, ek_roll(x[0], EK_SHAPE(1, -2), EK_SHAPE(0, 1)))
ROW(roll_flat, MOVES, ek_roll(x[0], EK_SHAPE(4), ek_scalar_shape()))
ROW(repeat, MOVES, ek_repeat(x[0], EK_SHAPE(2, 1, 3)))
ROW(tile, MOVES, ek_tile(x[0], EK_SHAPE(2)))
ROW(repeat_interleave, MOVES, ek_repeat_interleave(x[0], 3, 1))
ROW(repeat_interleave_by, MOVES, ek_repeat_interleave_by(x[0], x[1], 0))
ROW(tril, MOVES, ek_tril(x[0], 0))
ROW(tril_above, MOVES, ek_tril(x[0], 1))
ROW(triu, MOVES, ek_triu(x[0], 0))
ROW(triu_below, MOVES, ek_triu(x[0], -2))
ROW(diagonal, MOVES, ek_diagonal(x[0], 1, 0, 2))
ROW(diagonal_below, MOVES, ek_diagonal(x[0], -1, 0, 1))
ROW(diag_of_vector, MOVES, ek_diag(x[0], -1))
ROW(diag_of_matrix, MOVES, ek_diag(x[0], 1))
ROW(movedim, MOVES, ek_movedim(x[0], 0, 2))
ROW(movedim_back, MOVES, ek_movedim(x[0], -1, 1))
ROW(unflatten, MOVES, ek_f_unflatten(x[0], 1, EK_SHAPE(2, -1)))
ROW(unbind, MOVES, pieces(out, ek_unbind(x[0], 1, out, 8)))
ROW(meshgrid_ij, MOVES, grid(x, EK_IJ))
ROW(meshgrid_xy, MOVES, grid(x, EK_XY))
ROW(pad_constant, BF16, PAD(EK_PAD_CONSTANT, 1.5, 1, 2, 0, 3))
ROW(pad_cut, MOVES, PAD(EK_PAD_CONSTANT, 0, -1, 2, 1, -2))
ROW(pad_pictures, MOVES, PAD(EK_PAD_CONSTANT, 0, 1, 0, 2, 1))
ROW(pad_all, MOVES, PAD(EK_PAD_CONSTANT, 0, 0, 1, 1, 0, 2, 0))
ROW(pad_reflect_1d, MOVES, PAD(EK_PAD_REFLECT, 0, 2, 3))
ROW(pad_reflect_2d, MOVES, PAD(EK_PAD_REFLECT, 0, 1, 2, 3, 0))
ROW(pad_reflect_3d, MOVES, PAD(EK_PAD_REFLECT, 0, 1, 1, 2, 0, 1, 1))
ROW(pad_replicate_1d, MOVES, PAD(EK_PAD_REPLICATE, 0, 2, 3))
ROW(pad_replicate_2d, MOVES, PAD(EK_PAD_REPLICATE, 0, 1, 2, 5, 0))
ROW(pad_replicate_3d, MOVES, PAD(EK_PAD_REPLICATE, 0, 1, 1, 2, 0, 1, 3))
ROW(pad_circular_1d, MOVES, PAD(EK_PAD_CIRCULAR, 0, 4, 3))
ROW(pad_circular_2d, MOVES, PAD(EK_PAD_CIRCULAR, 0, 1, 2, 3, 0))
ROW(pad_circular_3d, MOVES, PAD(EK_PAD_CIRCULAR, 0, 1, 1, 2, 0, 1, 2))
ROW(unfold, MOVES, ek_unfold(x[0], 1, 3, 2))
ROW(unfold_pictures, MOVES, ek_f_unfold(x[0], 3, .padding = 1))
ROW(unfold_each, MOVES,
    ek_f_unfold(x[0], .kernels = {2, 3}, .dilations = {1, 2}, .paddings = {0, 2},
                .strides = {2, 1}))
ROW(fold, BF16, ek_f_fold(x[0], 3, .padding = 1, .height = 4, .width = 5))
ROW(fold_each, BF16,
    ek_f_fold(x[0], .kernels = {2, 3}, .dilations = {1, 2}, .paddings = {0, 2}, .strides = {2, 1},
              .height = 5, .width = 6))
ROW(pixel_shuffle, MOVES, ek_f_pixel_shuffle(x[0], 2))
ROW(pixel_unshuffle, MOVES, ek_f_pixel_unshuffle(x[0], 3))
ROW(channel_shuffle, MOVES, ek_f_channel_shuffle(x[0], 3))
ROW(scatter_dim, MOVES, ek_scatter_dim(x[0], 0, x[1], x[2]))
ROW(scatter_larger, MOVES, ek_scatter_dim(x[0], 1, x[1], x[2]))
ROW(scatter_fill, BF16, ek_scatter_fill(x[0], 0, x[1], 2.5))
ROW(index_add, BF16, ek_index_add(x[0], 1, x[1], x[2], -1.5))
ROW(index_copy, MOVES, ek_index_copy(x[0], 0, x[1], x[2]))
ROW(index_fill, MOVES, ek_index_fill(x[0], 1, x[1], 3))
ROW(index, MOVES, ek_index(x[0], LIST(x[1], x[2])))
ROW(index_second, MOVES, ek_index(x[0], LIST(NULL, x[1])))
ROW(index_apart, MOVES, ek_index(x[0], LIST(x[1], NULL, x[2])))
ROW(index_mask, MOVES, ek_index(x[0], LIST(x[1])))
ROW(index_mask_last, MOVES, ek_index(x[0], LIST(NULL, x[1])))
ROW(index_put, MOVES, ek_index_put(x[0], LIST(x[2], x[3]), x[1], false))
ROW(index_put_accumulate, BF16, ek_index_put(x[0], LIST(x[2], x[3]), x[1], true))
ROW(index_put_mask, MOVES, ek_index_put(x[0], LIST(x[1]), x[2], false))
ROW(slice_scatter, MOVES, ek_slice_scatter(x[0], x[1], 1, 1, 8, 3))
ROW(select_scatter, MOVES, ek_select_scatter(x[0], x[1], 1, -2))
ROW(bmm, BF16, ek_bmm(x[0], x[1]))
ROW(outer, MOVES, ek_outer(x[0], x[1]))
ROW(einsum_product, BF16, ek_einsum("ij,jk->ik", x, 2))
ROW(einsum_attention, BF16, ek_einsum("bqhd, bkhd -> bhqk", x, 2))
ROW(einsum_implied, BF16, ek_einsum("ba,c", x, 2))
ROW(einsum_trace, BF16, ek_einsum("ii", x, 1))
ROW(einsum_diagonal, BF16, ek_einsum("bii->ib", x, 1))
ROW(einsum_sum, BF16, ek_einsum("ijk->j", x, 1))
ROW(einsum_ellipsis, BF16, ek_einsum("...ij,...jk->...ik", x, 2))
ROW(einsum_middle, BF16, ek_einsum("a...b,b->...a", x, 2))
ROW(einsum_ellipsis_sum, BF16, ek_einsum("...a->a", x, 1))
ROW(einsum_three, 0, ek_einsum("bi,ijk,bk->bj", x, 3))
ROW(einsum_elementwise, BF16, ek_einsum("ij,ij->ij", x, 2))
ROW(einsum_dropped, BF16, ek_einsum("ij,kj->k", x, 2))
ROW(einsum_one, BF16, ek_einsum("ij,jk->ik", x, 2))
ROW(cdist, BF16, ek_cdist(x[0], x[1], 2))
ROW(cdist_1, BF16, ek_cdist(x[0], x[1], 1))
ROW(cdist_of_many, 0, ek_cdist(x[0], x[1], 2))
ROW(cdist_of_few, KINKED, ek_cdist(x[0], x[1], 2))
ROW(pairwise_distance, BF16, ek_f_pairwise_distance(x[0], x[1]))
ROW(pairwise_distance_keepdim, BF16,
    ek_f_pairwise_distance(x[0], x[1], .eps = 0.1, .keepdim = true))
ROW(cosine_similarity, 0, ek_f_cosine_similarity(x[0], x[1]))
ROW(cosine_similarity_short, KINKED, ek_f_cosine_similarity(x[0], x[1], .dim = -1, .eps = 2))
ROW(normalize, BF16, ek_f_normalize(x[0]))
ROW(normalize_1, BF16, ek_f_normalize(x[0], .p = 1, .dim = -1))
ROW(pairwise_distance_3, BF16, ek_f_pairwise_distance(x[0], x[1], .p = 3))
ROW(normalize_short, BF16, ek_f_normalize(x[0], 0, 9))
