/* device_json.h: a device's memory as JSON. */
#ifndef COMMON_DEVICE_JSON_H
#define COMMON_DEVICE_JSON_H

#include <evenkeel/device.h>

#include "common/json.h"

/* An object of an array: the device's name, its peak and what that was used for, in bytes. Returns
 * 0 or a negative status. */
int device_json_write(json_writer *json, ek_device device);

#endif
