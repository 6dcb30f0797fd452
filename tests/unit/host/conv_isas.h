/* conv_isas.h: a way to convolve, on every instruction set that the processor has. */
#ifndef EK_TESTS_CONV_ISAS_H
#define EK_TESTS_CONV_ISAS_H

#include "conv_cases.h"
#include "host/conv.h"
#include "host/isa.h"

typedef struct conv_way {
    int (*run)(ek_dev *dev, const ek_conv *conv, int side);
    int side;
    int (*results)(const problem *p); /* how many of Y, DX, DW and DBIAS there are, in this order */
    double tolerance;
} conv_way;

/* The convolution of a problem's operands. */
static inline ek_conv conv_of(const problem *p)
{
    return (ek_conv){EK_CONV_FORWARD, p->x.host, p->w.host, p->bias.host, p->dy.host, &p->params};
}

/* The convolution that computes result Y, DX or DW (with DBIAS). */
static inline ek_conv conv_to(const problem *p, int result)
{
    ek_conv c = conv_of(p);
    const ek_tensor *out = p->out[result].host;
    c.kind = (ek_conv_kind)result;
    if (result != Y)
        c.bias = result == DW ? p->out[DBIAS].host : NULL;
    *(result == Y ? &c.y : result == DX ? &c.x : &c.w) = out;
    return c;
}

/* Limits the host to an instruction set; false if the processor lacks it. */
static inline bool conv_limit_isa(ek_isa isa)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    setenv("EVENKEEL_HOST_ISA", names[isa], 1);
    assert_ok(ek_host_read_settings());
    return ek_host_isa() == isa;
}

/* Compares with the wanted results, and one thread with two and three to the bit. Nothing of this
 * depends on a GPU: short runs, which follow a run on the host, leave it out. */
static inline void conv_check_isas(problem *p, const conv_way *way)
{
    if (test_is_short())
        return;
    ek_tensor *out[RESULTS];
    for (int i = 0; i < RESULTS; i++)
        out[i] = p->out[i].host;
    for (ek_isa isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++) {
        double *once[RESULTS] = {NULL};
        int results = conv_limit_isa(isa) ? way->results(p) : 0;
        for (int threads = 1; threads <= 3 && results; threads++) {
            ek_dev *dev = case_device(threads);
            for (int i = 0; i < results; i++)
                case_poison(out[i]);
            for (int i = 0; i < results && i < DBIAS; i++) {
                const ek_conv conv = conv_to(p, i);
                assert_ok(way->run(dev, &conv, way->side));
            }
            for (int i = 0; i < results; i++) {
                case_compare(out[i], p->wanted[i], way->tolerance, p->what);
                twin_repeated(out[i], &once[i], p->what);
            }
        }
        for (int i = 0; i < RESULTS; i++)
            free(once[i]);
    }
}

#endif
