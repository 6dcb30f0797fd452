/* gemm_pack.c: products' operands in the order in which the innermost loops read them
 * (gemm_blocked.h). */
#ifndef EK_REAL
#include "host/gemm_blocked.h"

#include <string.h>

#include "core/multiversion.h"
#include "host/gemm_kernel.h"
#include "host/host.h"

#define EK_FOR_REALS "host/gemm_pack.c"
#include "kernels/for_reals.h"

#else /* for each EK_REAL */

/* Inlined for each width, so that the inner loops unroll. */
static inline __attribute__((always_inline)) void
EK_NAME(gemm_pack_width)(EK_REAL *restrict to, const EK_REAL *from, int64_t lines, int64_t depth,
                         int width, int64_t line_stride, int64_t depth_stride)
{
    enum { AHEAD = 8, SIDE_BY_SIDE = 8, TRANSPOSED = 32 / sizeof(EK_REAL), SLICE = 64 };
    while (line_stride == 1 && lines >= width) { /* a few panels' part of a row after the other */
        const int64_t panels = ek_smaller(lines / width, SIDE_BY_SIDE);
        for (int64_t d = 0; d < depth; d++) {
            const EK_REAL *row = from + d * depth_stride;
            EK_REAL *at = to + d * width;
            for (int64_t p = 0; p < panels; p++, at += width * depth, row += width) {
                __builtin_prefetch(row + AHEAD * depth_stride);
                memcpy(at, row, (size_t)width * sizeof(EK_REAL));
            }
        }
        to += panels * width * depth;
        from += panels * width;
        lines -= panels * width;
    }
    for (; lines > 0; lines -= width, to += width * depth, from += width * line_stride) {
        int64_t count = ek_smaller(lines, width), done = 0;
        if (count < width)
            memset(to, 0, (size_t)(width * depth) * sizeof(EK_REAL));
        if (depth_stride == 1 && count >= TRANSPOSED)
            /* A slice's lines are written in several passes: it stays in level 1 cache. */
            for (int64_t d = 0; d == done && d < depth; d += SLICE)
                for (int64_t l = 0; l < count; l += TRANSPOSED) { /* the last ones may overlap */
                    int64_t line = ek_smaller(l, count - TRANSPOSED);
                    done =
                        d + EK_NAME(ek_gemm_transpose)(to + d * width + line, width,
                                                       from + line * line_stride + d, TRANSPOSED,
                                                       line_stride, ek_smaller(SLICE, depth - d));
                }
        else if (depth_stride == 1 && count == width && 2 * count >= TRANSPOSED)
            /* The next vector overwrites what this one writes beyond its lines. */
            done = EK_NAME(ek_gemm_transpose)(to, width, from, count, line_stride, depth - 1);
        if (count == width)
            for (int64_t d = done; d < depth; d++)
                for (int l = 0; l < width; l++)
                    to[d * width + l] = from[l * line_stride + d * depth_stride];
        else
            for (int64_t d = done; d < depth; d++)
                for (int64_t l = 0; l < count; l++)
                    to[d * width + l] = from[l * line_stride + d * depth_stride];
    }
}

EK_MULTIVERSION
void EK_NAME(ek_gemm_pack)(EK_REAL *to, const EK_REAL *from, int64_t lines, int64_t depth,
                           int width, int64_t line_stride, int64_t depth_stride)
{
#define PACK(known)                                                                         \
    if (width == (known)) {                                                                 \
        EK_NAME(gemm_pack_width)(to, from, lines, depth, known, line_stride, depth_stride); \
        return;                                                                             \
    }
    PACK(4)
    PACK(6)
    PACK(8)
    PACK(12)
    PACK(16)
    PACK(32)
    EK_NAME(gemm_pack_width)(to, from, lines, depth, width, line_stride, depth_stride);
#undef PACK
}

#endif
