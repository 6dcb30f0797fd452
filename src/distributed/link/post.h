/* post.h: short messages that threads of two ranks exchange beside the program's calls.
 *
 * A post needs no agreement and waits for no call. Failures of the job don't stop it, as long as
 * the world isn't broken. Posts from one rank to another keep their order. */
#ifndef EK_LINK_POST_H
#define EK_LINK_POST_H

#include "link/packet.h"

/* ---- on any thread ---- */

/* Sends one->packet to the rank one->from of the world, and takes `one` over. The packet's members
 * status, number, silent and text travel. */
void ek_post_send(ek_communication *communication, ek_kept_packet *one);
/* Waits for the next post of a rank of the world. If the world breaks first, returns its error. If
 * the post does not come in the world's time-out, the world breaks with EK_E_TIMEOUT. One thread
 * waits at a time. */
int ek_post_take(ek_communication *communication, int from, ek_packet *packet);

/* ---- on the communication thread ---- */

/* Sends what was posted. Returns true if there was anything. */
bool ek_posts_turn(ek_communication *communication);
/* Keeps a post that came. If there is no memory, breaks the world. */
void ek_posts_keep(ek_communication *communication, int from, const ek_packet *packet);

#endif
