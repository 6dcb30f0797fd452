/* remote.c: see remote.h. */
#include "kit/remote.h"

#include "core/device.h"
#include "core/error.h"
#include "unit.h"

ek_backend remote;
const ek_backend *remote_real;
atomic_int copies, broadcasts, exchanges, library_sums;
static ek_collective offered;
static int remote_devices;

static int remote_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes)
{
    copies += to != from && from->id.kind != EK_CPU;
    return remote_real->copy(to, to_data, from, from_data, nbytes);
}

static int remote_collective(ek_dev *const *devs, int count)
{
    return (int)offered;
}

static void remote_sum(const ek_block_sum *sum, int count)
{
    ck_assert_int_eq(sum->dtype, EK_F32);
    library_sums++;
    for (int64_t i = 0; i < sum->elements; i++) {
        float value = 0;
        for (int d = count - 1; d >= 0; d--)
            value += ((float *)sum->data[d])[i];
        ((float *)sum->out)[i] = value;
    }
}

static int remote_exchange(ek_dev *const *devs, int count, const ek_exchange_step *steps,
                           int step_count)
{
    for (int s = 0; s < step_count; s++) {
        const ek_exchange_step *step = &steps[s];
        for (int d = 0; d < count && step->work; d++)
            EK_TRY(step->work(step->user, devs[d]));
        broadcasts += step->data != NULL;
        for (int d = 1; d < count && step->data; d++)
            EK_TRY(remote_real->copy(devs[d], step->data[d], devs[0], step->data[0], step->nbytes));
        if (step->sum)
            remote_sum(step->sum, count);
        exchanges += step->count > 0;
        for (int i = 0; i < step->count; i++)
            EK_TRY(remote_real->copy(step->moves[i].to, step->moves[i].target, step->moves[i].from,
                                     step->moves[i].source, step->moves[i].nbytes));
    }
    return 0;
}

void make_remote(int devices, ek_collective offer)
{
    const ek_backend *now = ek_dev_get(test_device(0))->backend;
    if (now != &remote) /* a test may call this again */
        remote_real = now;
    remote = *remote_real;
    remote.host_memory = false;
    remote.copy = remote_copy;
    remote.collective = remote_collective;
    remote.exchange = remote_exchange;
    for (int d = 0; d < devices; d++) {
        /* With AddressSanitizer the host's backend poisons cached memory, which the remote backend
         * would hand out poisoned. */
        ck_assert_int_eq(ek_memory_trim(test_device(d)), 0);
        ek_dev_get(test_device(d))->backend = &remote;
    }
    remote_devices = devices;
    offered = offer;
    copies = broadcasts = exchanges = library_sums = 0;
}

void end_remote(void)
{
    for (int d = 0; d < remote_devices; d++)
        ek_dev_get(test_device(d))->backend = remote_real;
}
