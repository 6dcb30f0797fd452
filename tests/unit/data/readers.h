/* readers.h: the readers of files under one signature: whether they could read the file. */
#ifndef EK_TESTS_READERS_H
#define EK_TESTS_READERS_H

#include "evenkeel/data.h"

static inline bool read_idx(const char *path)
{
    return ek_read_idx(path) != NULL;
}

static inline bool read_npy(const char *path)
{
    return ek_read_npy(path) != NULL;
}

static inline bool read_cifar(const char *path)
{
    ek_tensor *pictures, *labels;
    return ek_read_cifar(path, 10, &pictures, &labels) == 0;
}

static inline bool read_safetensors(const char *path)
{
    ek_safetensors *file = ek_safetensors_open(path);
    bool opened = file != NULL;
    ek_safetensors_close(file);
    return opened;
}

#endif
