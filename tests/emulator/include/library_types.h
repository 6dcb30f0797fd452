/* library_types.h: element types as CUDA's libraries name them. */
#ifndef EK_EMULATOR_LIBRARY_TYPES_H
#define EK_EMULATOR_LIBRARY_TYPES_H

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14
} cudaDataType;

#endif
