/* broadcast.h: moves that are equal lists for several receivers, by collectives; for this folder.
 */
#ifndef EK_COMM_BROADCAST_H
#define EK_COMM_BROADCAST_H

#include "comm/exchange.h"

/* Returns how many moves each of `receivers` devices has, if the moves are equal lists from one
 * device to these receivers, one receiver after another; else 0. */
int ek_broadcast_length(const ek_move *moves, int count, int receivers);

/* Does such moves, n for each receiver, within a section of the devices. `arrivals` as in
 * ek_exchange_ahead, or NULL. `what` names the span. */
int ek_broadcast_moves(const char *what, const ek_move *moves, int count, int n,
                       ek_arrival *arrivals);

#endif
