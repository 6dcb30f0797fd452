/* A list of devices that could not be made is no empty one, which would mean all devices of the
 * default kind. */
#include "unit.h"

NAMES_DEVICES

/* A kind that this machine lacks, or more devices than there can be of it. */
static ek_device_list unmade(bool cleared)
{
    ek_device_list list = ek_devices(EK_CUDA, ek_device_count(EK_CUDA) ? EK_MAX_DEVICES + 1 : 0);
    if (cleared)
        ek_error_clear();
    return list;
}

static void assert_list_refused(bool cleared, const char *what)
{
    if (!cleared)
        assert_error(EK_E_DEVICE, " cuda devices wanted, but there ");
    else
        assert_error(EK_E_INVALID, what);
}

static int try_batch(int64_t batch, void *user)
{
    return batch > 4 || !user ? EK_E_OUT_OF_MEMORY : 0;
}

TEST_LOOP(unmade_lists_are_refused, 0, 2)
{
    const bool cleared = _i;
    ek_module *modules[] = {ek_linear(2, 2), ek_linear(2, 2),
                            ek_mse_loss()}; /* wrappers take them */
    ek_tensor *out[4] = {0}, *x = ek_ones(EK_SHAPE(4, 2));
    ek_dataset *dataset = ek_tensor_dataset(x);
    int64_t batch = 0;
    ck_assert_ptr_null(ek_data_parallel(modules[0], .device_ids = unmade(cleared)));
    assert_list_refused(cleared, "data_parallel: the list of devices could not be made");
    ck_assert_ptr_null(ek_data_parallel_model(modules[1], .device_ids = unmade(cleared)));
    assert_list_refused(cleared, "data_parallel_model: the list of devices could not be made");
    ck_assert_ptr_null(ek_data_parallel_criterion(modules[2], .device_ids = unmade(cleared)));
    assert_list_refused(cleared, "data_parallel_criterion: the list of devices could not be made");
    ck_assert_ptr_null(ek_data_loader(dataset, .batch_size = 2, .device_ids = unmade(cleared)));
    assert_list_refused(cleared, "data_loader: the list of devices could not be made");
    ck_assert_ptr_null(ek_report_start(.device_ids = unmade(cleared)));
    assert_list_refused(cleared, "report_start: the list of devices could not be made");
    ck_assert_int_lt(ek_find_batch(.function = try_batch, .user = &batch,
                                   .device_ids = unmade(cleared)),
                     0);
    assert_list_refused(cleared, "find_batch: the list of devices could not be made");
    ek_device_list list = unmade(cleared);
    ck_assert_int_lt(ek_broadcast(x, &list, out), 0);
    assert_list_refused(cleared, "broadcast: the list of devices could not be made");
    list = unmade(cleared);
    ck_assert_int_lt(ek_scatter(x, &list, NULL, 0, out), 0);
    assert_list_refused(cleared, "scatter: the list of devices could not be made");
}
