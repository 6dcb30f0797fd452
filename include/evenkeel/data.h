/* data.h: reading data sets. */
#ifndef EVENKEEL_DATA_H
#define EVENKEEL_DATA_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/* Reads a whole IDX file of unsigned bytes (plain or gzip) into a u8 tensor on cpu. EK_E_IO
 * (missing, unreadable), EK_E_FORMAT (bad magic, another element type, sizes that overflow,
 * truncated, trailing bytes). */
EK_API ek_tensor *ek_read_idx(const char *path);

EK_END_DECLARATIONS
#endif
