/* thread.h: what nearly every file needs: errors, forks, the heap, and the thread's state. */
#ifndef EK_CORE_THREAD_H
#define EK_CORE_THREAD_H

#include "core/error.h"
#include "core/fork.h"
#include "core/heap.h"
#include "core/thread_state.h"

#endif
