// fiber.cpp: see fiber.h. swapcontext asks the kernel about signals at each switch, which is a
// hundred times slower than the few instructions that are needed.
#include "fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef EK_EMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EK_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace emulator
{

#ifdef __x86_64__

// ek_emulator_switch(void **saved, void *next): registers that a call preserves go on the stack.
extern "C" void ek_emulator_switch(void **saved, void *next);
__asm__(".text\n"
        ".globl ek_emulator_switch\n"
        ".hidden ek_emulator_switch\n"
        ".type ek_emulator_switch, @function\n"
        "ek_emulator_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size ek_emulator_switch, .-ek_emulator_switch\n");

static void *first_frame(char *stack, size_t size, void (*entry)())
{
    // From below: six registers, where to return to (aligned, as the caller of entry would have
    // left it), and no caller.
    void **top = reinterpret_cast<void **>(stack + size);
    void **at = top - 2;
    at[0] = reinterpret_cast<void *>(entry);
    at[1] = nullptr;
    for (int i = 0; i < 6; i++)
        *--at = nullptr;
    return at;
}

static void jump(Fiber *from, Fiber *to)
{
    ek_emulator_switch(&from->saved, to->saved);
}

#else

static void *first_frame(char *stack, size_t size, void (*entry)())
{
    ucontext_t *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = size;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}

static void jump(Fiber *from, Fiber *to)
{
    if (!from->saved)
        from->saved = new ucontext_t;
    swapcontext(static_cast<ucontext_t *>(from->saved), static_cast<ucontext_t *>(to->saved));
}

#endif

// What was left at the last switch.
static Fiber *left;

static void arrived(Fiber *now)
{
    (void)now;
#ifdef EK_EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(now ? now->fake_stack : nullptr, &left->stack,
                                    &left->stack_size);
#endif
}

static void (*fiber_entry)();
static Fiber *newest;
static unsigned created;

static void start()
{
    arrived(nullptr);
    fiber_entry();
    abort();
}

Fiber *fiber_create(void (*entry)())
{
#if defined(EK_EMULATOR_ASAN) || defined(EK_EMULATOR_TSAN)
    const size_t size = 256 << 10;
#else
    const size_t size = 128 << 10;
#endif
    size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(nullptr, size + guard, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
        fprintf(stderr, "emulator: no memory for a fiber's stack\n");
        abort();
    }
    fiber_entry = entry;
    char *stack = static_cast<char *>(memory) + guard;
    Fiber *fiber = new Fiber;
    fiber->older = newest;
    newest = fiber;
    fiber->stack = stack;
    // Stacks that all ended at the same place of a page would fight for the same cache lines.
    fiber->stack_size = size - (size_t)(created++ % 64) * 192;
    fiber->saved = first_frame(stack, fiber->stack_size, start);
#ifdef EK_EMULATOR_TSAN
    fiber->race_state = __tsan_create_fiber(0);
#endif
    return fiber;
}

void fiber_adopt(Fiber *fiber)
{
    (void)fiber;
#ifdef EK_EMULATOR_TSAN
    fiber->race_state = __tsan_get_current_fiber();
#endif
}

void fiber_switch(Fiber *from, Fiber *to)
{
#ifdef EK_EMULATOR_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_size);
#endif
    left = from;
#ifdef EK_EMULATOR_TSAN
    __tsan_switch_to_fiber(to->race_state, 0);
#endif
    jump(from, to);
    arrived(from);
}

} // namespace emulator
