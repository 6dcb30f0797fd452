/* notice.c: small packets between two ranks: notices of failures, questions of inquiries
 * (inquiry.c) and what precedes messages (message.c). Each rank always has a receive open for a
 * packet of any rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "link/post.h"

/* A packet on its way to another rank. */
typedef struct outgoing {
    struct outgoing *next;
    ek_packet packet;
    ek_request *request;
} outgoing;

struct ek_notices {
    ek_packet incoming;
    ek_request *receive;
    outgoing *sent;
    ek_kept_packet *early; /* packets of a later epoch, in order of arrival */
};

void ek_notices_close(ek_communication *communication)
{
    struct ek_notices *board = communication->board;
    if (!board)
        return;
    if (board->receive && communication->shut)
        communication->transport->cancel(&board->receive);
    while (board->sent) {
        outgoing *next = board->sent->next;
        while (communication->shut && board->sent->request &&
               communication->transport->test(&board->sent->request, NULL) == 0)
            ;
        free(board->sent);
        board->sent = next;
    }
    ek_packet_drop(&board->early);
    free(board);
    communication->board = NULL;
}

void ek_packet_send(ek_communication *communication, int to, const ek_packet *packet)
{
    outgoing *one = ek_calloc(1, sizeof *one);
    if (!one && packet->kind == EK_PACKET_POST) { /* the receiver has no time-out */
        ek_communication_break_here(communication);
        return;
    }
    if (!one) {
        ek_error_clear(); /* the receiver finds the loss by its time-out */
        return;
    }
    one->packet = *packet;
    int rc = communication->transport->send(communication->notices, &one->packet,
                                            sizeof one->packet, to, 0, &one->request);
    if (rc < 0) {
        free(one);
        ek_communication_break(communication, "notice", rc);
        return;
    }
    one->next = communication->board->sent;
    communication->board->sent = one;
}

static void notice_tell(ek_communication *communication, const ek_error_record *error)
{
    ek_packet packet = {.kind = EK_PACKET_FAILURE,
                        .epoch = communication->epoch,
                        .silent = communication->silent};
    packet.status = error->status;
    snprintf(packet.text, sizeof packet.text, "%.*s", (int)sizeof packet.text - 1, error->message);
    for (int r = 0; r < communication->place.size; r++)
        if (r != communication->place.rank)
            ek_packet_send(communication, r, &packet);
}

/* ---- packets that come ---- */

static void notice_failure(ek_communication *communication, int from, const ek_packet *packet)
{
    ek_error_record error = {.status = packet->status};
    snprintf(error.message, sizeof error.message, "%.*s", (int)sizeof packet->text - 1,
             packet->text);
    communication->silent = communication->silent || packet->silent;
    ek_communication_fail(communication, from, &error);
}

static void notice_dispatch(ek_communication *communication, int from, const ek_packet *packet)
{
    switch (packet->kind) {
    case EK_PACKET_FAILURE:
        notice_failure(communication, from, packet);
        break;
    case EK_PACKET_WHERE:
    case EK_PACKET_HERE:
        ek_inquiries_take(communication, from, packet);
        break;
    case EK_PACKET_POST:
        ek_posts_keep(communication, from, packet);
        break;
    default:
        communication->peers.take(communication, from, packet);
        break;
    }
}

/* Frees the packets that were sent. */
static void notice_sweep(ek_communication *communication)
{
    for (outgoing **at = &communication->board->sent; *at;) {
        outgoing *one = *at;
        int rc = communication->transport->test(&one->request, NULL);
        if (rc == 0) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        free(one);
        if (rc < 0) {
            ek_communication_break(communication, "notice", rc);
            return;
        }
    }
}

void ek_packet_keep(ek_communication *communication, ek_kept_packet **list, int from,
                    const ek_packet *packet)
{
    ek_kept_packet *one = ek_calloc(1, sizeof *one);
    if (!one) {
        ek_communication_fail_here(communication);
        return;
    }
    one->from = from;
    one->packet = *packet;
    while (*list)
        list = &(*list)->next;
    *list = one;
}

void ek_packet_drop(ek_kept_packet **list)
{
    while (*list) {
        ek_kept_packet *next = (*list)->next;
        free(*list);
        *list = next;
    }
}

/* Takes the early packets whose epoch has come, and drops those whose epoch has passed. Returns
 * true if there were any. */
static bool notice_take_early(ek_communication *communication)
{
    bool any = false;
    for (ek_kept_packet **at = &communication->board->early; *at && !communication->broken;) {
        ek_kept_packet *one = *at;
        if (one->packet.epoch > communication->epoch) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        if (one->packet.epoch == communication->epoch)
            notice_dispatch(communication, one->from, &one->packet);
        free(one);
        any = true;
    }
    return any;
}

static void notice_take(ek_communication *communication, int from, const ek_packet *packet)
{
    /* Inquiries, their answers and posts are taken in any epoch, and so are acceptances and
     * readings, because their transfers always happen. */
    bool timeless = packet->kind == EK_PACKET_WHERE || packet->kind == EK_PACKET_HERE ||
                    packet->kind == EK_PACKET_ACCEPT || packet->kind == EK_PACKET_READ ||
                    packet->kind == EK_PACKET_POST;
    if (timeless || packet->epoch == communication->epoch)
        notice_dispatch(communication, from, packet);
    else if (packet->epoch > communication->epoch)
        ek_packet_keep(communication, &communication->board->early, from, packet);
}

bool ek_notices_turn(ek_communication *communication)
{
    struct ek_notices *board = communication->board;
    const ek_transport *transport = communication->transport;
    if (communication->broken)
        return false;
    notice_sweep(communication);
    bool any = ek_posts_turn(communication);
    any |= ek_inquiries_turn(communication);
    any |= notice_take_early(communication);
    int from = 0, rc = 0;
    if (!board->receive)
        rc = transport->receive(communication->notices, &board->incoming, sizeof board->incoming,
                                EK_TRANSPORT_ANY, 0, &board->receive);
    if (rc >= 0)
        rc = transport->test(&board->receive, &from);
    if (rc < 0)
        ek_communication_break(communication, "notice", rc);
    else if (rc > 0)
        notice_take(communication, from, &board->incoming);
    return any || rc != 0;
}

struct ek_notices *ek_notices_open(ek_communication *communication)
{
    communication->peers.tell = notice_tell;
    return ek_calloc(1, sizeof(struct ek_notices));
}
