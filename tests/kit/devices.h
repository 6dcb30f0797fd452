/* devices.h: fixtures of devices of the kind that tests run on, as in
 * FIXTURE(four_devices, shut_down), and their ledgers. */
#ifndef EK_TESTS_KIT_DEVICES_H
#define EK_TESTS_KIT_DEVICES_H

#include "unit.h"

void one_device(void);
void two_devices(void);
void four_devices(void);

/* Shuts the library down. This fails if a ledger isn't at zero. */
void shut_down(void);

uint64_t bytes_in_use(ek_device device);
uint64_t bytes_now(ek_device device, ek_memory_category category);

#endif
