/* backends.c: the backends of this build, most preferred kind last. */
#include "core/backend.h"

extern const ek_backend ek_cpu_backend;
extern const ek_backend ek_host_backend;

const ek_backend *const ek_backend_table[] = {&ek_cpu_backend, &ek_host_backend, NULL};
