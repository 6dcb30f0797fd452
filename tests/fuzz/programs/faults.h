/* faults.h: what fails on purpose: the user's code, a device's capacity, calls of other libraries.
 */
#ifndef EK_TESTS_FUZZ_FAULTS_H
#define EK_TESTS_FUZZ_FAULTS_H

#include <evenkeel/device.h>

#include "program.h"

/* From now on the fault strikes, one of a device on this one. `at` says how much memory is left, or
 * which call fails: one of those that the latest stretch between fault_count and fault_counted had
 * (of the kind that the fault is about; none if it had none). */
void fault_arm(int fault, ek_device device, int at);
void fault_disarm(void);

/* For the user's code, on any thread. */
bool fault_strikes(int fault, ek_device device);

/* An error that the fault may have caused. */
bool fault_explains(int fault, int status);

/* Counts calls. */
void fault_count(void);
void fault_counted(void);

#endif
