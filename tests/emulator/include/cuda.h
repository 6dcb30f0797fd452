/* cuda.h: the part of CUDA's driver interface that the emulator has: primary contexts. */
#ifndef EK_EMULATOR_CUDA_H
#define EK_EMULATOR_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_UNKNOWN = 999 } CUresult;

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *context);

#ifdef __cplusplus
}
#endif

#endif
