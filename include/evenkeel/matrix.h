/** @file
 * matrix.h: products by name or by subscripts, and distances of rows; ops.h has ek_matmul. The
 * rules of ops.h hold. */
#ifndef EVENKEEL_MATRIX_H
#define EVENKEEL_MATRIX_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** (B, n, k) times (B, k, m), without broadcasting. */
EK_API ek_tensor *ek_bmm(ek_tensor *x, ek_tensor *y);
/** All products of two vectors: (n, m). */
EK_API ek_tensor *ek_outer(ek_tensor *x, ek_tensor *y);

/** As torch.einsum: ek_einsum("bqd,bkd->bqk", (ek_tensor *[]){q, k}, 2). Letters name dimensions;
 * those that the result lacks are summed, and a letter twice in one operand takes the diagonal.
 * "..." stands for any further dimensions, which broadcast. Without "->" the result has the letters
 * that occur once, in alphabetical order, capitals first. Operands are joined from left to right,
 * by matrix products if letters are summed. EK_E_INVALID for subscripts that can't be read,
 * EK_E_SHAPE for operands that don't fit them. */
EK_API ek_tensor *ek_einsum(const char *equation, ek_tensor *const *tensors, int count);

/** x' W y for each of the matrices W of weight (out, in1, in2), plus bias (out) or NULL: x
 * (..., in1) and y (..., in2) give (..., out). */
EK_API ek_tensor *ek_f_bilinear(ek_tensor *x, ek_tensor *y, ek_tensor *weight, ek_tensor *bias);

/** Distances of the rows of x (..., P, M) and y (..., R, M): (..., P, R), batches broadcast. p is 1
 * or 2. If P or R is above 25, 2-norms are computed by a product of matrices, as in PyTorch: fast,
 * but less precise for small distances. The gradient at distance 0 is 0. */
EK_API ek_tensor *ek_cdist(ek_tensor *x, ek_tensor *y, double p);

typedef struct ek_pairwise_distance_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x, *y;
    double eps EK_IS(1e-6);
    bool keepdim;
    double p EK_IS(2);
} ek_pairwise_distance_options;
#define EK_DEFAULTS_ek_pairwise_distance_options EK_DEFAULT(eps, 1e-6), EK_DEFAULT(p, 2)
EK_API ek_tensor *ek_f_pairwise_distance_with(ek_pairwise_distance_options options);
/** ek_f_pairwise_distance(x, y, .p = 1): the p-norms of x - y + eps along the last dimension. */
#define ek_f_pairwise_distance(...) \
    EK_CALL_2(ek_f_pairwise_distance_with, ek_pairwise_distance_options, x, y, __VA_ARGS__)

typedef struct ek_cosine_similarity_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x, *y;
    int dim EK_IS(1);
    double eps EK_IS(1e-8);
} ek_cosine_similarity_options;
#define EK_DEFAULTS_ek_cosine_similarity_options EK_DEFAULT(dim, 1), EK_DEFAULT(eps, 1e-8)
EK_API ek_tensor *ek_f_cosine_similarity_with(ek_cosine_similarity_options options);
/** ek_f_cosine_similarity(x, y, .dim = -1): the cosines of the angles between x and y along `dim`.
 * Norms below eps count as eps. */
#define ek_f_cosine_similarity(...) \
    EK_CALL_2(ek_f_cosine_similarity_with, ek_cosine_similarity_options, x, y, __VA_ARGS__)

typedef struct ek_normalize_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int dim EK_IS(1);
    double eps EK_IS(1e-12);
    double p EK_IS(2);
} ek_normalize_options;
#define EK_DEFAULTS_ek_normalize_options \
    EK_DEFAULT(dim, 1), EK_DEFAULT(eps, 1e-12), EK_DEFAULT(p, 2)
EK_API ek_tensor *ek_f_normalize_with(ek_normalize_options options);
/** ek_f_normalize(x, .dim = -1): x divided by its p-norm along `dim`, or by eps if that is larger.
 */
#define ek_f_normalize(...) EK_CALL_1(ek_f_normalize_with, ek_normalize_options, x, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
