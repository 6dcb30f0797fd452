/* fake_driver.c: libcuda.so.1 for machines without a driver: it has no GPU, and takes code without
 * looking at it. cuDNN compiles attention for a GPU that is only described, and loads the result
 * before it says that the plan is finished. */

enum { CUDA_SUCCESS = 0, CUDA_ERROR_STUB_LIBRARY = 34, CUDA_ERROR_NOT_SUPPORTED = 801 };

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDriverGetVersion(int *version);
int cuGetErrorName(int error, const char **text);
int cuGetErrorString(int error, const char **text);
int cuLibraryLoadData(void **library);
int cuLibraryGetKernel(void **kernel);
int cuLibraryUnload(void *library);

int cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_ERROR_STUB_LIBRARY;
}

int cuDeviceGetCount(int *count)
{
    *count = 0;
    return CUDA_ERROR_STUB_LIBRARY;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

int cuGetErrorName(int error, const char **text)
{
    (void)error;
    *text = "an error";
    return CUDA_SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    return cuGetErrorName(error, text);
}

int cuLibraryLoadData(void **library)
{
    static char code;
    *library = &code;
    return CUDA_SUCCESS;
}

int cuLibraryGetKernel(void **kernel)
{
    return cuLibraryLoadData(kernel);
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return CUDA_SUCCESS;
}

/* What cuDNN looks for, and does not call without a GPU. */
#define NOT_SUPPORTED(name)              \
    int name(void);                      \
    int name(void)                       \
    {                                    \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }

NOT_SUPPORTED(cuCtxGetCurrent)
NOT_SUPPORTED(cuCtxGetLimit)
NOT_SUPPORTED(cuCtxPopCurrent)
NOT_SUPPORTED(cuCtxPushCurrent)
NOT_SUPPORTED(cuDeviceGet)
NOT_SUPPORTED(cuKernelGetAttribute)
NOT_SUPPORTED(cuKernelSetAttribute)
NOT_SUPPORTED(cuLaunchCooperativeKernel)
NOT_SUPPORTED(cuLaunchKernel)
NOT_SUPPORTED(cuLaunchKernelEx)
NOT_SUPPORTED(cuLibraryLoadFromFile)
NOT_SUPPORTED(cuLinkAddData)
NOT_SUPPORTED(cuLinkComplete)
NOT_SUPPORTED(cuLinkCreate)
NOT_SUPPORTED(cuLinkDestroy)
NOT_SUPPORTED(cuOccupancyMaxPotentialClusterSize)
NOT_SUPPORTED(cuStreamGetCtx)
