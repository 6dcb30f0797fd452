/* faults.h: what fails on purpose: the user's code, a device's capacity, an allocation. */
#ifndef EK_TESTS_FUZZ_FAULTS_H
#define EK_TESTS_FUZZ_FAULTS_H

#include <evenkeel/device.h>

#include "program.h"

/* Allocations can be made to fail in this program. */
bool faults_have_allocations(void);

/* From now on the fault strikes on the device (FAULT_ALLOCATION: anywhere). `at` says how much
 * memory is left, or which of the allocations that the latest stretch between fault_count and
 * fault_counted made. */
void fault_arm(int fault, ek_device device, int at);
void fault_disarm(void);

/* For the user's code, on any thread. */
bool fault_strikes(int fault, ek_device device);

/* An error that the fault may have caused. */
bool fault_explains(int fault, int status);

/* Counts allocations. */
void fault_count(void);
void fault_counted(void);

#endif
