/* conv_isas.h: a way to convolve, on every instruction set that the processor has. */
#ifndef EK_TESTS_CONV_ISAS_H
#define EK_TESTS_CONV_ISAS_H

#include "conv_cases.h"
#include "host/conv.h"
#include "host/isa.h"

typedef struct conv_way {
    int (*run)(ek_dev *dev, ek_conv_kind kind, int side, const ek_tensor *x, const ek_tensor *w,
               const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);
    int side;
    int (*results)(const problem *p); /* how many of Y, DX, DW and DBIAS there are, in this order */
    double tolerance;
} conv_way;

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
    const ek_conv_params *params = &p->params;
    ek_tensor *x = p->x.host, *w = p->w.host, *bias = p->bias.host, *dy = p->dy.host, *out[RESULTS];
    for (int i = 0; i < RESULTS; i++)
        out[i] = p->out[i].host;
    for (ek_isa isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++) {
        double *once[RESULTS] = {NULL};
        int results = conv_limit_isa(isa) ? way->results(p) : 0;
        for (int threads = 1; threads <= 3 && results; threads++) {
            ek_dev *dev = case_device(threads);
            for (int i = 0; i < results; i++)
                case_poison(out[i]);
            assert_ok(way->run(dev, EK_CONV_FORWARD, way->side, x, w, bias, out[Y], params));
            assert_ok(
                way->run(dev, EK_CONV_INPUT_GRADIENT, way->side, out[DX], w, NULL, dy, params));
            if (results == RESULTS)
                assert_ok(way->run(dev, EK_CONV_WEIGHT_GRADIENT, way->side, x, out[DW], out[DBIAS],
                                   dy, params));
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
