/* devices.h: the accelerators that the tests run on: host devices, or GPUs where
 * EVENKEEL_TEST_DEVICES is "cuda". */
#ifndef EK_TESTS_DEVICES_H
#define EK_TESTS_DEVICES_H

#include "evenkeel/device.h"

ek_device_kind test_kind(void);
ek_device test_device(int index);

/* Where tensors live that no test puts elsewhere: cpu, or the first GPU. */
ek_device test_home(void);

/* Under EVENKEEL_TEST_SHORT (emulators, checking tools) long tests take fewer steps and cases. */
bool test_is_short(void);

/* Numbers that the host computes to the bit alike for one sample and for many: how far apart they
 * may be, relatively. GPUs' libraries choose their algorithms by size. */
double test_rounding(void);

/* As ek_host_devices_configure. GPUs: as many logical ones with these capacities (a speed is left
 * out), dealt out over the first EVENKEEL_TEST_GPUS (1) physical ones. */
int test_devices_configure(const char *specification);

/* Ends the program with 77, which ctest takes for skipped, if there is no GPU. Another process
 * looks, since neither threads nor a GPU's state outlive Check's fork. */
void skip_without_gpu(void);

/* `text` with "host:1" as the device is called that stands for it; valid until the next call. */
const char *device_text(const char *text);

/* What an asynchronous device found wrong counts as the result of the call that issued the work:
 * `status`, or if that is well, what waiting for the devices brings up. */
int settled(int status);
/* The same for a call that gives a tensor. */
struct ek_tensor *settled_tensor(struct ek_tensor *tensor);

#endif
