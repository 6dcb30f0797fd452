/* rendezvous.h: where the parts of a gang wait for each other.
 *
 * A rendezvous is complete when every part of the gang has arrived at the same place; the last one
 * to arrive does the common work, the others wait, then all go on with what it left for them. A
 * part that has ended, well or not, can no longer arrive: whoever waits for it gets its error. So
 * nobody waits for ever, whatever a part does, except where it doesn't end.
 *
 * Lock rule: a meeting's lock is taken with no other held and never held while parts compute. */
#ifndef EK_CORE_RENDEZVOUS_H
#define EK_CORE_RENDEZVOUS_H

#include "core/thread.h"

/* The common work: parts[i] is what part i brought. Runs once, in the last part's thread, in a
 * scope of its own; what shall outlive it is retained by it. Returns 0 or a negative status with
 * the error set, which every part gets. */
typedef int ek_rendezvous_function(void *const *parts, int count);

/* Parts that meet when the calling thread calls ek_rendezvous: those of its gang, or of the gang
 * around one with a single part; 1 on threads without a gang. */
int ek_rendezvous_count(void);

/* Meets the other parts. `place` and `name` tell one rendezvous from another: parts that meet at
 * different ones are EK_E_STATE with both names. With one part the work is done at once. Where
 * another part has failed: EK_E_ABORTED with its sentence; if it ended well: EK_E_STATE. After a
 * failure all later ones of the gang fail too. EK_E_STATE if parts run one after the other (a
 * gang within a gang, two parts on cpu), so that they cannot meet, where modes carry EK_MODE_ALONE,
 * and in backward. `name` is a static string. */
int ek_rendezvous(const char *name, uint64_t place, void *mine, ek_rendezvous_function *function);

/* ---- for gangs ---- */

typedef struct ek_meeting ek_meeting; /* where the parts of one gang meet */

/* For parts on devs[0 .. count), `what` (NULL: "part") in sentences. errors[i] is part i's, to be
 * written before it leaves. `in_turn`: the parts run one after the other. NULL with an error. */
ek_meeting *ek_meeting_new(ek_dev *const *devs, int count, const char *what,
                           const ek_error_record *errors, bool in_turn);
void ek_meeting_free(ek_meeting *meeting);

/* The calling thread becomes part `index`, and afterwards again what ek_meeting_enter returned. */
ek_seat ek_meeting_enter(ek_meeting *meeting, int index);
void ek_meeting_leave(ek_meeting *meeting, int index, ek_seat before);

#endif
