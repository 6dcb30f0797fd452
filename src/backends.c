/* backends.c: what a build gives the library: its backends, and the folder of its plugins. The
 * table is all that core knows of backends, whose files call core: one circle of files runs through
 * it. */
#include "core/backend.h"
#include "distributed/launch/launcher.h"

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

const char ek_plugin_folder[] = EK_PLUGIN_FOLDER;
