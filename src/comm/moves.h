/* moves.h: lists of moves: how many of them one copy does (moves.c), and lists that are broadcasts
 * by collectives (broadcast.c). For this folder. */
#ifndef EK_COMM_MOVES_H
#define EK_COMM_MOVES_H

#include "comm/exchange.h"

/* How many moves are packed or exchanged at a time. A list of so many fits on the stack. */
enum { EK_MOVES_AT_ONCE = 64 };

/* ek_moves_same_route returns true if both moves are between the same two devices. ek_moves_route
 * returns how many moves, from the first on, have one route. */
bool ek_moves_same_route(const ek_move *a, const ek_move *b);
int ek_moves_route(const ek_move *moves, int count);

/* Returns how many moves, from the first on, one copy does. */
int ek_moves_run(const ek_move *moves, int count);

/* Returns how many moves, from the first on, can be packed at once, because their targets lie as in
 * a slab; 0 if the first target isn't dense. */
int ek_moves_packable(const ek_move *moves, int count);

/* Copies each move's elements to packed[i], on the sender, in the receiver's layout, in the
 * scope. */
int ek_moves_pack(const ek_move *moves, int count, ek_tensor **packed);

/* Returns the block that copies these moves at once. */
ek_block_move ek_moves_block(const ek_move *moves, int count);

/* Returns true if the move can be one block: `to` is dense, and either `from` needs no packing or
 * the packed elements fit the buffer. */
bool ek_move_is_block(const ek_move *move);

/* Returns how many moves each of `receivers` devices has, if the moves are equal lists from one
 * device to these receivers, one receiver after another; else 0. */
int ek_broadcast_length(const ek_move *moves, int count, int receivers);

/* Does the moves of a broadcast, n for each receiver, within a section of the devices. `arrivals`
 * are those of ek_exchange_ahead; NULL: the devices wait for all blocks. `what` names the span. */
int ek_broadcast_moves(const char *what, const ek_move *moves, int count, int n,
                       ek_arrival *arrivals);

#endif
