/* packet.h: packets that one rank sends to another rank, beside collectives. */
#ifndef EK_LINK_PACKET_H
#define EK_LINK_PACKET_H

#include "link/communication.h"

typedef enum ek_packet_kind {
    EK_PACKET_FAILURE = 1, /* the sender has failed; has status, text, silent */
    EK_PACKET_WHERE,       /* asks where the receiver is in the group; has group */
    EK_PACKET_HERE,   /* tells where the sender is; has number (of ended calls), in_call, lacks,
                         lacked, text */
    EK_PACKET_OFFER,  /* offers a message; has group, tag, offer, shape */
    EK_PACKET_ACCEPT, /* accepts an offer; has offer, transfer, number (of bytes) */
    EK_PACKET_REFUSE, /* refuses an offer of another shape or dtype; has offer, status, text */
    EK_PACKET_READ, /* asks for memory that the receiver serves; has group, transfer, at, number */
    EK_PACKET_POST  /* is a post (post.h); has status, number, silent, text */
} ek_packet_kind;

enum { EK_PACKET_LACKED = 8 };

struct ek_packet {
    uint32_t kind, epoch;
    int32_t group, tag, status;
    uint32_t offer, transfer;
    uint64_t number, at; /* at: offset in the memory, in bytes */
    bool in_call, silent;
    int32_t lacks, lacked[EK_PACKET_LACKED]; /* how many ranks' data the sender lacks; the first */
    ek_wire_shape shape;
    char text[768];
};

/* A packet in a list in order of arrival: an offer that waits for its receive, or a packet that
 * waits for its epoch. A packet of the next epoch may arrive before the notice of the failure that
 * ends the present epoch, because another rank sends the notice. */
struct ek_kept_packet {
    ek_kept_packet *next;
    int from; /* rank in the world */
    ek_packet packet;
};

/* Appends a copy of the packet to the list. If there is no memory, begins a failure of the job. */
void ek_packet_keep(ek_communication *communication, ek_kept_packet **list, int from,
                    const ek_packet *packet);

/* Frees all packets of the list. */
void ek_packet_drop(ek_kept_packet **list);

/* Sends a packet to another rank of the world. */
void ek_packet_send(ek_communication *communication, int to, const ek_packet *packet);

/* Takes a question or an answer of an inquiry. inquiry.c. */
void ek_inquiries_take(ek_communication *communication, int from, const ek_packet *packet);
/* If there is an inquiry, begins a failure (the work's time-out) once all ranks that were asked
 * have answered or have had the time to. If a failure has begun already, only drops the inquiry.
 * Returns true if the inquiry ended. */
bool ek_inquiries_turn(ek_communication *communication);

#endif
