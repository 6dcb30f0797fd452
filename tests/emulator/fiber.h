// fiber.h: stacks that take turns on one host thread.
#ifndef EK_EMULATOR_FIBER_H
#define EK_EMULATOR_FIBER_H

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define EK_EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EK_EMULATOR_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define EK_EMULATOR_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EK_EMULATOR_TSAN 1
#endif
#endif

namespace emulator
{

struct Fiber {
    void *saved = nullptr; // where it goes on: a stack pointer, or a ucontext_t
    const void *stack = nullptr;
    size_t stack_size = 0;
    void *fake_stack = nullptr; // AddressSanitizer's
    void *race_state = nullptr; // ThreadSanitizer's
    Fiber *older = nullptr;     // of all fibers
};

// A fiber with a stack of its own, which starts in entry() and never returns from it. It is never
// freed: blocks of later kernels use it.
Fiber *fiber_create(void (*entry)());

// Makes `fiber` stand for the calling thread's own stack.
void fiber_adopt(Fiber *fiber);

// Leaves `from`, which is what runs now, and goes on with `to`.
void fiber_switch(Fiber *from, Fiber *to);

} // namespace emulator

#endif
