/* backends.c: the backends of this build. */
#include "core/backend.h"

extern const ek_backend ek_cpu_backend;
extern const ek_backend ek_host_backend;
#ifdef EK_WITH_CUDA
extern const ek_backend ek_cuda_backend;
#endif

const ek_backend *const ek_backend_table[] = {&ek_cpu_backend, &ek_host_backend,
#ifdef EK_WITH_CUDA
                                              &ek_cuda_backend,
#endif
                                              NULL};
