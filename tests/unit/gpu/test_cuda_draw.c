/* Random numbers of Philox are made on the GPU, whatever the layout: the emulator counts bytes. */
#include "unit.h"

BEFORE_ALL(skip_without_gpu)

#ifdef EK_CUDA_EMULATED
#include <emulator.h>

TEST(nothing_comes_from_the_host)
{
    ek_emulator_counters counters;
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_tensor *rows = ek_empty(EK_SHAPE(4, 6, 5, 7), EK_F32, ek_cuda(0));
    ek_tensor *last =
        ek_empty(EK_SHAPE(4, 6, 5, 7), EK_F32, ek_cuda(0), .format = EK_CHANNELS_LAST);
    ek_tensor *all[] = {rows, last, ek_permute(rows, EK_SHAPE(2, 0, 3, 1)),
                        ek_narrow(rows, 1, 2, 3)};
    for (int i = 0; i < 4; i++) {
        assert_ok(ek_synchronize(ek_cuda(0)));
        ek_emulator_reset_counters();
        assert_ok(ek_normal_(all[i], 0, 1, NULL));
        assert_ok(ek_random_(all[i], 0, 9, NULL));
        assert_made(ek_f_dropout(all[i], 0.5, true));
        assert_ok(ek_synchronize(ek_cuda(0)));
        ek_emulator_count(&counters);
        ck_assert_uint_eq(counters.host_to_device, 0);
        ck_assert_uint_ge(counters.kernels, 3);
    }
}

#else

TEST(fills_run)
{
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_tensor *x = ek_empty(EK_SHAPE(4, 6, 5, 7), EK_F32, ek_cuda(0), .format = EK_CHANNELS_LAST);
    assert_ok(ek_normal_(x, 0, 1, NULL));
    assert_ok(ek_synchronize(ek_cuda(0)));
}

#endif
