/* dnn_setup.h: convolutions without memory as cuDNN is asked for them, and a GPU that is only
 * described. */
#ifndef EK_TESTS_DNN_SETUP_H
#define EK_TESTS_DNN_SETUP_H

#include "cuda/dnn_plan.h"
#include "unit.h"

typedef struct conv_case {
    const char *what;
    int dims;
    int64_t samples, channels, outputs, groups;
    int64_t in[3], window[3], stride[3], padding[3], dilation[3], fewer;
} conv_case;

static inline int64_t windows(const conv_case *c, int i)
{
    return (c->in[i] + 2 * c->padding[i] - c->dilation[i] * (c->window[i] - 1) - 1) / c->stride[i] +
           1 - c->fewer;
}

/* Tensors without memory. */
static inline bool problem_of(const conv_case *c, ek_dnn_operation operation, ek_dtype dtype,
                              ek_memory_format format, ek_dnn_problem *problem)
{
    ek_tensor x = {.dtype = dtype, .ndim = 2 + c->dims, .shape = {c->samples, c->channels}};
    ek_tensor w = {.dtype = dtype,
                   .ndim = 2 + c->dims,
                   .shape = {c->outputs, c->channels / c->groups}};
    ek_tensor y = {.dtype = dtype, .ndim = 2 + c->dims, .shape = {c->samples, c->outputs}};
    ek_conv_params params = {.dims = c->dims, .groups = c->groups};
    for (int i = 0; i < c->dims; i++) {
        x.shape[2 + i] = c->in[i];
        w.shape[2 + i] = c->window[i];
        y.shape[2 + i] = windows(c, i);
        params.stride[i] = c->stride[i];
        params.padding[i] = c->padding[i];
        params.dilation[i] = c->dilation[i];
    }
    return ek_dnn_problem_of(problem, operation, &x, &w, &y, &params, format);
}

#ifdef EK_DNN_WITH_PROPERTIES

/* GPUs as cuDNN describes them. */
__attribute__((unused)) static const char h100[] =
    "{\"deviceName\": \"H100\", \"cudaDeviceId\": 0, \"deviceVer\": 900, \"driverVer\": 13000, "
    "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
    "\"regsPerBlock\": 65536, \"multiProcessorCount\": 132, \"warpSize\": 32, "
    "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, "
    "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": 1980000, "
    "\"memClockRateKHz\": 2619000, \"l2CacheSize\": 52428800, \"totalGlobalMem\": 85899345920}";

__attribute__((unused)) static const char h200[] =
    "{\"deviceName\": \"H200\", \"cudaDeviceId\": 0, \"deviceVer\": 900, \"driverVer\": 13000, "
    "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
    "\"regsPerBlock\": 65536, \"multiProcessorCount\": 132, \"warpSize\": 32, "
    "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, "
    "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": 1980000, "
    "\"memClockRateKHz\": 3201000, \"l2CacheSize\": 62914560, \"totalGlobalMem\": 150754820096}";

__attribute__((unused)) static const char b200[] =
    "{\"deviceName\": \"B200\", \"cudaDeviceId\": 0, \"deviceVer\": 1000, \"driverVer\": 13000, "
    "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
    "\"regsPerBlock\": 65536, \"multiProcessorCount\": 148, \"warpSize\": 32, "
    "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, "
    "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": 1965000, "
    "\"memClockRateKHz\": 3996000, \"l2CacheSize\": 132644864, \"totalGlobalMem\": 191514066944}";

/* NULL if this version of cuDNN doesn't understand it. */
static inline cudnnBackendDescriptor_t properties_of(const ek_cudnn_api *api, const char *json)
{
    cudnnBackendDescriptor_t properties = NULL;
    ck_assert(api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties) ==
              CUDNN_STATUS_SUCCESS);
    if (api->cudnnBackendSetAttribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, (int64_t)strlen(json),
                                      json) == CUDNN_STATUS_SUCCESS &&
        api->cudnnBackendFinalize(properties) == CUDNN_STATUS_SUCCESS)
        return properties;
    (void)api->cudnnBackendDestroyDescriptor(properties);
    return NULL;
}

#endif

#endif
