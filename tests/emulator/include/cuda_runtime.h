// cuda_runtime.h: CUDA's C++ for g++ and clang++: the runtime's functions, device code's words and
// functions, and launches.
#ifndef EK_EMULATOR_CUDA_RUNTIME_H
#define EK_EMULATOR_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"
#include "emulator_device.h"

// A kernel with its arguments.
struct ek_emulator_call {
    virtual ~ek_emulator_call() = default;
    virtual void run() const = 0; // one thread
    const void *arguments = nullptr;
    size_t size = 0;
    const void *kernel = nullptr;
    const char *signature = nullptr;
};

// Takes the call. Defined by the emulator.
cudaError_t ek_emulator_launch(const cudaLaunchConfig_t *config, ek_emulator_call *call);

template <typename... Expected> struct ek_emulator_kernel_call final : ek_emulator_call {
    void (*function)(Expected...);
    std::tuple<std::decay_t<Expected>...> values;

    // Bytes between arguments are looked at with them: zero, not what lay there before. (A memset
    // would be removed, as a store before the object lives.)
    static void *operator new(size_t size)
    {
        void *memory = calloc(1, size);
        if (!memory)
            abort();
        return memory;
    }
    static void operator delete(void *memory)
    {
        free(memory);
    }

    ek_emulator_kernel_call(void (*f)(Expected...), Expected... v) : function(f), values(v...)
    {
        arguments = &values;
        size = sizeof...(Expected) == 0 ? 0 : sizeof values;
        kernel = reinterpret_cast<const void *>(f);
        signature = __PRETTY_FUNCTION__;
    }
    void run() const override
    {
        std::apply(function, values);
    }
};

template <typename... Expected>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes,
                                                void (*kernel)(Expected...))
{
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}

// Arguments are copied now; the kernel runs when its stream comes to it.
template <typename... Expected, typename... Actual>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                             void (*kernel)(Expected...), Actual &&...actual)
{
    static_assert((std::is_trivially_copyable<Expected>::value && ...),
                  "arguments of kernels are plain data");
    return ek_emulator_launch(
        config, new ek_emulator_kernel_call<Expected...>(kernel, std::forward<Actual>(actual)...));
}

#endif
