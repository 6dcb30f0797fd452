/* How long a device worked is told by its own clock, and nobody waits for the answer. */
#include <time.h>

#include "cuda/runtime.h"
#include "kit/models.h"

BEFORE_ALL(skip_without_gpu)

enum { DEVICES = 2, LONG_MS = 60, SHORT_MS = 20 };

static void sleep_on_stream(void *user)
{
    const int milliseconds = *(const int *)user;
    const struct timespec moment = {0, milliseconds * 1000000L};
    nanosleep(&moment, NULL);
}

/* Passes its input on, once its device has slept. */
static ek_value sleeper_forward(ek_module *module, const ek_args *args)
{
    static const int durations[DEVICES] = {LONG_MS, SHORT_MS};
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_dev *dev = ek_tensor_dev(x);
    ek_cuda_stream stream;
    if (ek_cuda_begin(dev, &stream) < 0 ||
        ek_cuda_end(dev, &stream, "sleep",
                    (int)cudaLaunchHostFunc(stream.handle, sleep_on_stream,
                                            (void *)&durations[dev->id.index])) < 0)
        return ek_value_error();
    return ek_value_of_tensor(ek_mul_scalar(x, 2));
}

MODULE_TYPE(sleeper, ek_module)

static double busy_ms(int device)
{
    return 1e-6 * (double)ek_dev_busy_ns(ek_dev_get(ek_cuda(device)));
}

TEST(forwards_are_timed_where_they_run)
{
    double before[DEVICES];
    assert_ok(ek_cuda_devices_configure("0,0"));
    ek_module *model = ek_data_parallel_model(ek_module_new(&sleeper_type));
    assert_made(model);
    ek_tensor *x = ek_ones(EK_SHAPE(4, 3));
    for (int i = 0; i < DEVICES; i++)
        before[i] = busy_ms(i);
    ck_assert(ek_forward(model, x).kind != EK_VALUE_ERROR);
    for (int i = 0; i < DEVICES; i++)
        assert_ok(ek_synchronize(ek_cuda(i)));
    ck_assert_double_ge(busy_ms(0) - before[0], LONG_MS);
    ck_assert_double_ge(busy_ms(1) - before[1], SHORT_MS);
#ifdef EK_CUDA_EMULATED /* CUDA may call host functions of different streams one after the other \
                         */
    ck_assert_double_lt(busy_ms(1) - before[1], LONG_MS);
#endif
    double once = busy_ms(0);
    ck_assert_double_eq(busy_ms(0), once); /* counted once */
    ek_module_free(model);
}

/* More forwards than the clock has room for are issued at once: none waits, some aren't timed. */
TEST(many_forwards_at_once)
{
    enum { FORWARDS = 2 * EK_CUDA_LAPS };
    assert_ok(ek_cuda_devices_configure("0,0"));
    ek_module *model = ek_data_parallel_model(ek_module_new(&sleeper_type));
    ek_tensor *x = ek_ones(EK_SHAPE(4, 3));
    ck_assert_double_eq(busy_ms(0), 0); /* from now on somebody asks */
    for (int i = 0; i < FORWARDS; i++)
        ck_assert(ek_forward(model, x).kind != EK_VALUE_ERROR);
    for (int i = 0; i < DEVICES; i++)
        assert_ok(ek_synchronize(ek_cuda(i)));
    ck_assert_double_ge(busy_ms(0), LONG_MS * EK_CUDA_LAPS);
    ck_assert_double_lt(busy_ms(0), 2 * LONG_MS * EK_CUDA_LAPS);
    ek_module_free(model);
}
