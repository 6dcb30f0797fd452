/* linspace.h: evenly spaced numbers. Each number is computed from the nearer end and rounded once,
 * so that it equals PyTorch 2's to the bit on processors with fused multiplications. */
#ifndef EK_CORE_LINSPACE_H
#define EK_CORE_LINSPACE_H

#include <math.h>
#include <stdint.h>

/* Returns number i of `steps` numbers from start to end. */
#define EK_DEFINE_LINSPACE(name, type, fused)                                          \
    static inline type name(type start, type end, int64_t steps, int64_t i)            \
    {                                                                                  \
        const type step = steps > 1 ? (end - start) / (type)(steps - 1) : 0;           \
        return i < steps / 2 || steps == 1 ? fused(step, (type)i, start)               \
                                           : fused(-step, (type)(steps - 1 - i), end); \
    }
EK_DEFINE_LINSPACE(ek_linspace_f32, float, fmaf)
EK_DEFINE_LINSPACE(ek_linspace_f64, double, fma)
#undef EK_DEFINE_LINSPACE

#endif
