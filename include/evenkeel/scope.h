/** @file
 * scope.h: scopes, which release what operations make.
 *
 * Tensors and values are reference counted. What an operation makes is owned by the innermost scope
 * of the calling thread: the scope holds a reference and releases it when it ends. To use a tensor
 * longer, add a reference with ek_keep and drop it with ek_release. Every thread has a root scope,
 * which ends with the thread or with ek_shutdown. Scopes nest; each belongs to one thread.
 *
 * Mistakes with lifetimes are undefined, as in all of C, but the library can watch for them. With
 * EVENKEEL_CHECK=1 in the environment, the use of a tensor, module, optimizer or other handle after
 * its release fails with EK_E_STATE and a sentence that names the file and line of the release.
 * Functions that cannot fail do and return what they do for NULL. The last 16384 tensors and lists
 * that each thread has released are known, in about 5 MiB; threads that have ended have as many
 * together. Warnings (to ek_set_log's function, else to stderr), each once, tell of double
 * releases; of scopes that are ended twice, by another thread, or only by the scope around them; of
 * a scope that has grown at each of the last 100 steps of an optimizer; of members of a replicated
 * module's struct that aren't registered and point to what is; and of an error whose sentence
 * nobody has read when its thread or the process ends.
 *
 * EVENKEEL_CHECK=anomaly warns of the operation, and its module, that first makes a NaN or an
 * infinity of finite operands, in forward and in backward. Nothing fails, because such a number may
 * be multiplied away. Not reported are infinities that the call gives as a number (ek_masked_fill),
 * and those in f16 in backward, for which ek_grad_scaler looks. EVENKEEL_CHECK=1,anomaly does both.
 *
 * Calls that release are also macros, which tell the library their place. To leave file names out
 * of a program, define EK_WITHOUT_PLACES before the headers. */
#ifndef EVENKEEL_SCOPE_H
#define EVENKEEL_SCOPE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

struct ek_tensor;

/** A position in the thread's list of owned objects. */
typedef struct ek_scope {
    size_t mark;
    unsigned depth;     /**< 0: the scope has ended */
    int line;           /**< of `file`, where the scope began */
    const char *file;   /**< NULL: unknown */
    const void *thread; /**< identifies the thread that began the scope */
} ek_scope;

/** Begins a scope: it owns what this thread makes until ek_scope_end. */
EK_API ek_scope ek_scope_begin(void);

/** Releases everything made since the matching begin, newest first. Inner scopes that are still
 * open end too. A scope that has ended, or that another thread began, stays unchanged. */
EK_API void ek_scope_end(ek_scope *scope);

/** Ends the scope, but moves `tensor` (may be NULL) to the enclosing scope; returns it. */
EK_API struct ek_tensor *ek_scope_return(ek_scope *scope, struct ek_tensor *tensor);

/** Adds a reference for the caller; NULL stays NULL. Returns its argument. Any thread. */
EK_API struct ek_tensor *ek_keep(struct ek_tensor *tensor);

/** Drops one reference; NULL is ignored. Any thread. */
EK_API void ek_release(struct ek_tensor *tensor);

/** Leaves the process group, for which all ranks call it (dist.h), ends the root scope of the
 * calling thread, joins all workers and frees the cached memory of every device. No other thread
 * may be inside the library. Afterwards the library can be used again from the start. Returns 0, or
 * EK_E_STATE with a sentence that names a device with memory in use, because a tensor is still
 * kept. */
EK_API int ek_shutdown(void);

/** Notes the place of the call that releases or begins a scope and follows at once: for the macros
 * below. Returns `pointer`. */
EK_API void *ek_placed(const void *pointer, const char *file, int line);

EK_END_DECLARATIONS

/** EK_SCOPE(step): declares the scope `step`, which ends with its block: at the closing brace, and
 * by break, continue, return and goto, too. Ending it earlier, with ek_scope_return say, is fine.
 */
#ifdef __cplusplus
template <class T> static inline T *ek_placed_as(T *pointer, const char *file, int line)
{
    ek_placed(nullptr, file, line);
    return pointer;
}
/** Of nullptr, NULL and 0. */
static inline decltype(nullptr) ek_placed_as(decltype(nullptr), const char *, int)
{
    return nullptr;
}
class ek_scope_of_block : public ek_scope
{
  public:
    ek_scope_of_block(const char *in_file, int at_line)
        : ek_scope((ek_placed(nullptr, in_file, at_line), ek_scope_begin()))
    {
    }
    ~ek_scope_of_block()
    {
        ek_scope_end(this);
    }
    ek_scope_of_block(const ek_scope_of_block &) = delete;
    ek_scope_of_block &operator=(const ek_scope_of_block &) = delete;
};
#define EK_SCOPE(name) ek_scope_of_block name(__FILE__, __LINE__)
#define EK_PLACED_HERE(pointer) ek_placed_as((pointer), __FILE__, __LINE__)
#else
#define EK_SCOPE(name) \
    __attribute__((unused, cleanup(ek_scope_end))) ek_scope name = ek_scope_begin()
#define EK_PLACED_HERE(pointer) ((__typeof__(pointer))ek_placed((pointer), __FILE__, __LINE__))
#endif

#ifdef EK_WITHOUT_PLACES
#define EK_PLACED(pointer) pointer
#else
#define EK_PLACED(pointer) EK_PLACED_HERE(pointer)
#define ek_scope_begin() (ek_placed(NULL, __FILE__, __LINE__), ek_scope_begin())
#define ek_shutdown() (ek_placed(NULL, __FILE__, __LINE__), ek_shutdown())
#endif
#define ek_scope_end(scope) ek_scope_end(EK_PLACED(scope))
#define ek_scope_return(scope, tensor) ek_scope_return(scope, EK_PLACED(tensor))
#define ek_release(tensor) ek_release(EK_PLACED(tensor))

#endif
