/* library.c: see library.h. */
#include "cuda/library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/error.h"
#include "core/thread.h"
#ifdef EK_CUDA_EMULATED
#include <emulator.h>
#else
#include <dlfcn.h>
#endif

/* One library, with its versions in the order of preference. If `before` isn't NULL, that library
 * is opened first in each listed folder. */
typedef struct library {
    const char *name;
    struct {
        const char *soname, *before;
    } versions[3];
    const char *const *functions;
    char reason[320]; /* "" if it is open */
} library;

#ifdef EK_CUDA_EMULATED

static void *library_open(library *wanted)
{
    const char *soname = wanted->versions[0].soname;
    if (ek_emulator_has(soname))
        return wanted;
    snprintf(wanted->reason, sizeof wanted->reason, "the emulator has no %s", soname);
    return NULL;
}

static void *library_symbol(void *handle, const char *name)
{
    (void)handle;
    return ek_emulator_symbol(name);
}

#else

static void *library_open_at(const char *folder, size_t length, const char *soname)
{
    char path[1024];
    int used = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, soname);
    return used > 0 && (size_t)used < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* Opens a library in the first folder of a list that has it. */
static void *library_open_in(const char *folders, const char *soname, const char *before)
{
    void *handle = NULL;
    for (const char *at = folders; at && *at && !handle;) {
        size_t length = strcspn(at, ":");
        if (length > 0 && before)
            library_open_at(at, length, before);
        if (length > 0)
            handle = library_open_at(at, length, soname);
        at += length + (at[length] == ':');
    }
    return handle;
}

static void *library_open_version(const char *soname, const char *before)
{
    void *handle = library_open_in(getenv("EVENKEEL_CUDA_LIBRARIES"), soname, before);
    if (!handle)
        handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    return handle;
}

static void *library_open(library *wanted)
{
    void *handle = NULL;
    for (int i = 0; !handle && wanted->versions[i].soname; i++) {
        const char *soname = wanted->versions[i].soname;
        handle = library_open_version(soname, wanted->versions[i].before);
        if (!handle && i == 0) {
            const char *text = dlerror();
            snprintf(wanted->reason, sizeof wanted->reason, "%s", text ? text : soname);
        }
        if (!handle)
            handle = library_open_in("/usr/local/cuda/lib64:/usr/local/cuda/lib", soname,
                                     wanted->versions[i].before);
    }
    return handle;
}

static void *library_symbol(void *handle, const char *name)
{
    return dlsym(handle, name);
}

#endif

int ek_cuda_read_settings(void)
{
    static const char *const libraries[] = {"cublas", "cublaslt", "cudnn", "nccl"};
    bool plans;
    EK_TRY(ek_environment_switch("EVENKEEL_CUDA_PLANS", &plans));
    return ek_environment_check_list("EVENKEEL_CUDA_WITHOUT", libraries, 4);
}

/* Fills a table, which consists of function pointers in the order of the names. Sets `reason` if
 * the library can't be used. */
static void library_load(library *wanted, void *table)
{
    bool without = ek_environment_lists("EVENKEEL_CUDA_WITHOUT", wanted->name);
    void *handle = without ? NULL : library_open(wanted);
    if (without)
        snprintf(wanted->reason, sizeof wanted->reason, "EVENKEEL_CUDA_WITHOUT names it");
    if (handle)
        wanted->reason[0] = '\0';
    for (int i = 0; handle && wanted->functions[i]; i++) {
        void *function = library_symbol(handle, wanted->functions[i]);
        memcpy((char *)table + (size_t)i * sizeof function, &function, sizeof function);
        if (!function) { /* the library stays open, because some don't survive being closed */
            snprintf(wanted->reason, sizeof wanted->reason, "it has no function %s",
                     wanted->functions[i]);
            handle = NULL;
        }
    }
    if (handle)
        ek_log_line(EK_LOG_INFO, "%s is open", wanted->name);
    else
        ek_log_line(EK_LOG_WARNING, "%s cannot be used: %s", wanted->name, wanted->reason);
}

#define EK_FUNCTION_NAME(name) #name,

/* Defines the accessors of a library whose header this build has. */
#define EK_LIBRARY(prefix, title, map, ...)                                             \
    static const char *const prefix##_functions[] = {map(EK_FUNCTION_NAME) NULL};       \
    static library prefix##_library = {.name = title,                                   \
                                       .versions = {__VA_ARGS__},                       \
                                       .functions = prefix##_functions};                \
    static pthread_once_t prefix##_once = PTHREAD_ONCE_INIT;                            \
    static prefix##_api prefix##_table;                                                 \
    _Static_assert(sizeof prefix##_table + sizeof(void *) == sizeof prefix##_functions, \
                   "a table is one pointer for each name");                             \
    static void prefix##_load(void)                                                     \
    {                                                                                   \
        library_load(&prefix##_library, &prefix##_table);                               \
    }                                                                                   \
    const prefix##_api *prefix(void)                                                    \
    {                                                                                   \
        pthread_once(&prefix##_once, prefix##_load);                                    \
        return prefix##_library.reason[0] ? NULL : &prefix##_table;                     \
    }                                                                                   \
    const char *prefix##_reason(void)                                                   \
    {                                                                                   \
        return prefix() ? NULL : prefix##_library.reason;                               \
    }

/* Defines the accessors of a library whose header this build lacks. */
#define EK_NO_LIBRARY(prefix, header)                               \
    const prefix##_api *prefix(void)                                \
    {                                                               \
        return NULL;                                                \
    }                                                               \
    const char *prefix##_reason(void)                               \
    {                                                               \
        return "this library was built without the header " header; \
    }

EK_LIBRARY(ek_cublas, "cuBLAS", EK_CUBLAS_MAP, {"libcublas.so.13", "libcublasLt.so.13"},
           {"libcublas.so.12", "libcublasLt.so.12"})

EK_LIBRARY(ek_cublaslt, "cuBLASLt", EK_CUBLASLT_MAP, {"libcublasLt.so.13", NULL},
           {"libcublasLt.so.12", NULL})

#ifdef EK_HAVE_CUDNN
EK_LIBRARY(ek_cudnn, "cuDNN", EK_CUDNN_MAP, {"libcudnn.so.9", NULL})
#else
EK_NO_LIBRARY(ek_cudnn, "cudnn.h")
#endif

#ifdef EK_HAVE_NCCL
EK_LIBRARY(ek_nccl, "NCCL", EK_NCCL_MAP, {"libnccl.so.2", NULL})
#else
EK_NO_LIBRARY(ek_nccl, "nccl.h")
#endif
