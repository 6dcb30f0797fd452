/* devices.h: which accelerators a sample runs on. */
#ifndef COMMON_DEVICES_H
#define COMMON_DEVICES_H

#include "common/args.h"
#include "evenkeel/device.h"

/* For an option --device: {"devices", ARG_CHOICE, &choice, ...} with choice = devices_choice().
 * GPUs where there are some. */
arg_choice devices_choice(void);
ek_device_kind devices_kind(const arg_choice *choice);

/* `count` devices of the kind; 0: all there are. Nothing may live on that kind. The environment
 * (EVENKEEL_HOST_DEVICES, EVENKEEL_CUDA_DEVICES) says which; where it doesn't, as many host devices
 * as asked, or logical ones dealt out over the machine's GPUs. An empty list and a
 * pending error where they can't be had. */
ek_device_list devices_open(ek_device_kind kind, int count);

#endif
