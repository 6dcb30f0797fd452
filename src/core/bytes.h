/* bytes.h: a stretch of memory. */
#ifndef EK_CORE_BYTES_H
#define EK_CORE_BYTES_H

#include <stddef.h>

typedef struct ek_bytes {
    void *data;
    size_t nbytes;
} ek_bytes;

#endif
