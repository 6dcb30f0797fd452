/* scope_check.h: checks of scopes and of unread errors, for threads with EVENKEEL_CHECK=1. */
#ifndef EK_CORE_SCOPE_CHECK_H
#define EK_CORE_SCOPE_CHECK_H

#include "core/thread.h"

/* Notes the place of a scope that has begun. */
void ek_scope_check_begin(ek_thread *thread, ek_scope *scope);
/* Returns true if the thread may end the scope. Warns of a scope that has ended or belongs to
 * another thread, and of inner scopes that are open. Names the scope as what releases. */
bool ek_scope_check_end(ek_thread *thread, const ek_scope *scope);
/* Warns of open scopes and of an unread error, when the thread ends or ek_shutdown is called. */
void ek_scope_check_exit(ek_thread *thread);
/* Warns, once in a thread, if the thread owns more objects at each of many steps. Called before
 * each step of an optimizer, `what`. */
void ek_scope_check_growth(const char *what);

#endif
