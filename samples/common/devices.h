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
 * as asked, or logical ones dealt out over the machine's GPUs. A list of
 * count -1 and a pending error where they can't be had. */
ek_device_list devices_open(ek_device_kind kind, int count);

/* The same from an option's text: a number as above, or a list as the environment takes it
 * ("512M@1,256M@0.5"; for GPUs "0,0:8G"), which then stands in place of the environment's. */
ek_device_list devices_open_text(ek_device_kind kind, const char *text);
/* How many the text names; 0 for a list that isn't opened yet, -1 for a number out of range. */
int devices_text_count(const char *text);

#endif
