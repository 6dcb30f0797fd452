/* thread.h: what nearly every file needs: the thread's state, its error, and the heap. */
#ifndef EK_CORE_THREAD_H
#define EK_CORE_THREAD_H

#include "core/error.h"
#include "core/fork.h"
#include "core/heap.h"
#include "core/thread_state.h"

#endif
