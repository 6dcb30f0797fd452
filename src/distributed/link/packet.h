/* packet.h: what ranks tell each other one by one, beside collectives. */
#ifndef EK_LINK_PACKET_H
#define EK_LINK_PACKET_H

#include "link/communication.h"

typedef enum ek_packet_kind {
    EK_PACKET_FAILURE = 1, /* status, text, silent */
    EK_PACKET_WHERE,       /* group: where are you? */
    EK_PACKET_HERE,        /* number of the group's calls that have ended, in_call, text */
    EK_PACKET_OFFER,       /* group, tag, offer, shape: a message for you */
    EK_PACKET_ACCEPT,      /* offer, transfer, number of bytes: send it under this tag */
    EK_PACKET_REFUSE       /* offer, status, text: its shape or dtype is not what I wait for */
} ek_packet_kind;

struct ek_packet {
    uint32_t kind, epoch;
    int32_t group, tag, status;
    uint32_t offer, transfer;
    uint64_t number;
    bool in_call, silent;
    ek_wire_shape shape;
    char text[768];
};

/* A packet that waits for its epoch, in a list in order of arrival: the notice that ends the
 * present epoch may come after the packet, because another rank has sent the notice. */
typedef struct ek_kept_packet {
    struct ek_kept_packet *next;
    int from; /* rank in the world */
    ek_packet packet;
} ek_kept_packet;

/* Appends a copy of the packet to the list. Without memory the job fails. */
void ek_packet_keep(ek_communication *communication, ek_kept_packet **list, int from,
                    const ek_packet *packet);

/* Frees all packets of the list. */
void ek_packet_drop(ek_kept_packet **list);

/* Sends a packet to another rank of the world. */
void ek_packet_send(ek_communication *communication, int to, const ek_packet *packet);

#endif
