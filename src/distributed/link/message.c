/* message.c: messages between two ranks.
 *
 * The sender offers a message. The receiver matches the offer with the first of its receives that
 * fits, starts to receive the data under a transfer number, and accepts the offer with that number.
 * Then the sender sends. So the ranks compare shapes before any data moves, a receive can match any
 * tag and source, and no data arrives without room for it. Unless the world breaks, an accepted
 * transfer always happens, whatever fails meanwhile. If the sender has given the message up, zeros
 * are sent in its place.
 *
 * Readings of memory that another rank serves need no offer: the reader starts to receive under a
 * transfer number and asks for the bytes, and the other communication thread sends them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/thread.h"
#include "link/packet.h"
#include "link/staging.h"

enum { MESSAGE_TRANSFERS = 32768 }; /* transfer numbers begin again after this many */

/* What is sent without a work: zeros in place of a message that was given up, or served memory. */
typedef struct filler {
    struct filler *next;
    char *data;       /* owned; NULL: the memory is the owner's */
    ek_object *owner; /* one reference */
    ek_request *request;
} filler;

struct ek_messages {
    /* Works in order of submission. `done` of a send is the number of its offer. */
    ek_dist_work *sends, *receives;
    ek_kept_packet *offers; /* offers that fit no receive yet */
    filler *fillers;
    uint32_t offered, transfers; /* how many numbers of offers and transfers were used */
};

void ek_messages_close(ek_communication *communication)
{
    struct ek_messages *mailbox = communication->mailbox;
    if (!mailbox)
        return;
    ek_packet_drop(&mailbox->offers);
    free(mailbox);
    communication->mailbox = NULL;
}

static const ek_tensor *message_memory(const ek_dist_work *work)
{
    return work->tensors[0].memory;
}

static size_t message_nbytes(const ek_dist_work *work)
{
    return ek_comm_nbytes(message_memory(work));
}

static ek_wire_shape message_shape(const ek_dist_work *work)
{
    return ek_wire_shape_of(message_memory(work));
}

static void message_append(ek_dist_work **list, ek_dist_work *work)
{
    while (*list)
        list = &(*list)->next;
    *list = work;
}

static void message_remove(ek_dist_work **list, const ek_dist_work *work)
{
    while (*list != work)
        list = &(*list)->next;
    *list = work->next;
}

static void message_add(ek_communication *communication, ek_dist_work *work)
{
    struct ek_messages *mailbox = communication->mailbox;
    work->state = EK_DIST_WORK_AGREEING;
    if (work->verb->id != EK_VERB_SEND) {
        message_append(&mailbox->receives, work);
        return;
    }
    work->done = ++mailbox->offered;
    message_append(&mailbox->sends, work);
}

/* Offers the new sends whose tensors are complete, in their order. message_add cannot offer them,
 * because its caller holds the lock. */
static bool message_offer_new(ek_communication *communication)
{
    bool any = false;
    ek_dist_work *next;
    for (ek_dist_work *work = communication->mailbox->sends; work && !communication->broken;
         work = next) {
        next = work->next;
        if (work->stage > 0)
            continue;
        int staged = ek_dist_work_staged(work);
        if (staged == 0)
            break; /* later messages must not overtake this one */
        if (staged < 0) {
            ek_communication_fail_here(communication);
            return true; /* the failure has ended works of the list */
        }
        work->stage = 1;
        any = true;
        ek_packet packet = {.kind = EK_PACKET_OFFER,
                            .epoch = communication->epoch,
                            .group = work->group->number,
                            .tag = work->tag,
                            .offer = (uint32_t)work->done,
                            .shape = message_shape(work)};
        ek_packet_send(communication, work->peer, &packet);
    }
    return any;
}

/* ---- receiving ---- */

static bool message_fits(const ek_dist_work *work, const ek_kept_packet *one)
{
    return work->state == EK_DIST_WORK_AGREEING && work->verb->id == EK_VERB_RECV &&
           one->packet.group == work->group->number && one->packet.tag == work->tag &&
           (work->peer == EK_DIST_ANY || work->peer == one->from);
}

/* Fails a receive and the send of the offer `one` with one error: EK_E_DTYPE or EK_E_SHAPE. */
static void message_refuse(ek_communication *communication, ek_dist_work *work,
                           const ek_kept_packet *one)
{
    char sent[120], awaited[120];
    ek_wire_shape awaits = message_shape(work);
    ek_wire_shape_text(&one->packet.shape, sent);
    ek_wire_shape_text(&awaits, awaited);
    ek_packet refusal = {.kind = EK_PACKET_REFUSE,
                         .epoch = communication->epoch,
                         .offer = one->packet.offer,
                         .status =
                             one->packet.shape.dtype != awaits.dtype ? EK_E_DTYPE : EK_E_SHAPE};
    snprintf(refusal.text, sizeof refusal.text,
             "message of rank %d to rank %d (tag %d): %s is sent, but %s is to be received",
             one->from, communication->place.rank, work->tag, sent, awaited);
    ek_packet_send(communication, one->from, &refusal);
    message_remove(&communication->mailbox->receives, work);
    ek_dist_work_end(work, EK_FAIL(refusal.status, "%s", refusal.text));
}

static void message_accept(ek_communication *communication, ek_dist_work *work,
                           const ek_kept_packet *one)
{
    struct ek_messages *mailbox = communication->mailbox;
    ek_wire_shape awaits = message_shape(work);
    if (memcmp(&awaits, &one->packet.shape, sizeof awaits) != 0) {
        message_refuse(communication, work, one);
        return;
    }
    ek_packet acceptance = {.kind = EK_PACKET_ACCEPT,
                            .epoch = communication->epoch,
                            .offer = one->packet.offer,
                            .transfer = mailbox->transfers++ % MESSAGE_TRANSFERS,
                            .number = message_nbytes(work)};
    work->state = EK_DIST_WORK_COMMITTED;
    work->result = one->from;
    int rc = communication->transport->receive(communication->messages,
                                               ek_tensor_address(message_memory(work)),
                                               message_nbytes(work), one->from,
                                               (int)acceptance.transfer, &work->request);
    if (rc < 0)
        ek_communication_break(communication, "recv", rc);
    else
        ek_packet_send(communication, one->from, &acceptance);
}

/* Matches the receives, in their order, with the offers, in their order. Returns true if any
 * matched. */
static bool message_match(ek_communication *communication)
{
    struct ek_messages *mailbox = communication->mailbox;
    ek_dist_work *next;
    bool any = false;
    for (ek_dist_work *work = mailbox->receives; work; work = next) {
        next = work->next;
        ek_kept_packet **at = &mailbox->offers;
        while (*at && !message_fits(work, *at))
            at = &(*at)->next;
        if (!*at)
            continue;
        ek_kept_packet *one = *at;
        *at = one->next;
        message_accept(communication, work, one);
        free(one);
        any = true;
        if (communication->broken)
            break;
    }
    return any;
}

/* ---- sending ---- */

static void message_fill(ek_communication *communication, int to, const ek_packet *packet)
{
    filler *one = ek_calloc(1, sizeof *one);
    if (one)
        one->data = ek_calloc(packet->number + 1, 1);
    if (!one || !one->data) {
        free(one);
        ek_communication_fail_here(communication);
        return;
    }
    one->next = communication->mailbox->fillers;
    communication->mailbox->fillers = one;
    int rc = communication->transport->send(communication->messages, one->data, packet->number, to,
                                            (int)packet->transfer, &one->request);
    if (rc < 0)
        ek_communication_break(communication, "send", rc);
}

/* Sends memory that this rank serves. Without it begins a failure of the job, and sends zeros. */
static void message_serve(ek_communication *communication, int to, const ek_packet *packet)
{
    const ek_process_group *group = communication->groups;
    while (group && group->number != packet->group)
        group = group->next;
    bool served = group && group->served_by && packet->at <= group->served_nbytes &&
                  packet->number <= group->served_nbytes - packet->at;
    filler *one = served ? ek_calloc(1, sizeof *one) : NULL;
    if (!one) {
        if (!served)
            EK_FAIL(EK_E_STATE, "rank %d reads parameters that rank %d has not sharded", to,
                    communication->place.rank);
        ek_communication_fail_here(communication);
        message_fill(communication, to, packet);
        return;
    }
    one->owner = ek_object_retain(group->served_by);
    one->next = communication->mailbox->fillers;
    communication->mailbox->fillers = one;
    int rc =
        communication->transport->send(communication->messages, group->served + packet->at,
                                       packet->number, to, (int)packet->transfer, &one->request);
    if (rc < 0)
        ek_communication_break(communication, "send", rc);
}

static void message_send(ek_communication *communication, ek_dist_work *work,
                         const ek_packet *packet)
{
    work->state = EK_DIST_WORK_COMMITTED;
    int rc = communication->transport->send(communication->messages,
                                            ek_tensor_address(message_memory(work)),
                                            message_nbytes(work), work->peer, (int)packet->transfer,
                                            &work->request);
    if (rc < 0)
        ek_communication_break(communication, "send", rc);
}

static void message_take(ek_communication *communication, int from, const ek_packet *packet)
{
    struct ek_messages *mailbox = communication->mailbox;
    if (packet->kind == EK_PACKET_OFFER) {
        ek_packet_keep(communication, &mailbox->offers, from, packet);
        return;
    }
    if (packet->kind == EK_PACKET_READ) {
        message_serve(communication, from, packet);
        return;
    }
    ek_dist_work *work = mailbox->sends;
    while (work && !(work->peer == from && (uint32_t)work->done == packet->offer))
        work = work->next;
    if (packet->kind == EK_PACKET_ACCEPT) {
        if (work)
            message_send(communication, work, packet);
        else
            message_fill(communication, from, packet);
    } else if (work) {
        message_remove(&mailbox->sends, work);
        ek_dist_work_end(work, EK_FAIL(packet->status, "%.*s", (int)sizeof packet->text - 1,
                                       packet->text));
    }
}

/* ---- reading ---- */

static const ek_verb message_read = {.id = EK_VERB_READ};

void ek_group_serve(ek_process_group *group, ek_object *owner, const char *memory, size_t nbytes)
{
    ek_communication *communication = group->communication;
    pthread_mutex_lock(&communication->lock);
    group->served_by = ek_object_retain(owner);
    group->served = memory;
    group->served_nbytes = nbytes;
    communication->serving++;
    pthread_mutex_unlock(&communication->lock);
}

ek_dist_work *ek_group_read(ek_process_group *group, int rank, size_t at, ek_tensor *to)
{
    ek_dist_work *work = ek_dist_work_new(group, &message_read, 1);
    if (!work || ek_dist_work_add(work, to, false, true) < 0) {
        ek_dist_work_free(work);
        return NULL;
    }
    ek_communication *communication = group->communication;
    work->peer = group->ranks[rank];
    work->done = (int64_t)at;
    pthread_mutex_lock(&communication->lock);
    communication->reading++;
    pthread_mutex_unlock(&communication->lock);
    if (ek_dist_work_submit(work) >= 0)
        return work;
    pthread_mutex_lock(&communication->lock);
    communication->reading--;
    pthread_mutex_unlock(&communication->lock);
    return NULL;
}

/* Starts the new readings: receives, and asks for what is to come. */
static bool message_read_new(ek_communication *communication)
{
    struct ek_messages *mailbox = communication->mailbox;
    bool any = false;
    for (ek_dist_work *work = mailbox->receives; work && !communication->broken;
         work = work->next) {
        if (work->verb->id != EK_VERB_READ || work->state != EK_DIST_WORK_AGREEING)
            continue;
        ek_packet question = {.kind = EK_PACKET_READ,
                              .epoch = communication->epoch,
                              .group = work->group->number,
                              .transfer = mailbox->transfers++ % MESSAGE_TRANSFERS,
                              .number = message_nbytes(work),
                              .at = (uint64_t)work->done};
        work->state = EK_DIST_WORK_COMMITTED;
        any = true;
        int rc = communication->transport->receive(communication->messages,
                                                   ek_tensor_address(message_memory(work)),
                                                   message_nbytes(work), work->peer,
                                                   (int)question.transfer, &work->request);
        if (rc < 0)
            ek_communication_break(communication, ek_verb_name(work->verb->id), rc);
        else
            ek_packet_send(communication, work->peer, &question);
    }
    return any;
}

const ek_verb ek_verb_send = {.id = EK_VERB_SEND};
const ek_verb ek_verb_recv = {.id = EK_VERB_RECV};

/* ---- ends of messages, and failures ---- */

static const ek_dist_work *message_first(const ek_communication *communication)
{
    const struct ek_messages *mailbox = communication->mailbox;
    return mailbox->receives ? mailbox->receives : mailbox->sends;
}

/* Ends the works of a list whose transfers are complete, and begins an inquiry if a work is late.
 * Returns true if a work has ended. */
static bool message_finish(ek_communication *communication, ek_dist_work **list)
{
    bool any = false;
    ek_dist_work *next;
    for (ek_dist_work *work = *list; work && !communication->broken; work = next) {
        next = work->next;
        int rc = work->request ? communication->transport->test(&work->request, NULL) : 0;
        if (rc < 0) {
            ek_communication_break(communication, ek_verb_name(work->verb->id), rc);
            return true;
        }
        if (rc > 0) {
            message_remove(list, work);
            ek_dist_work_end(work, 0);
            any = true;
        } else if (!communication->failing && ek_dist_work_is_late(work)) {
            ek_notices_inquire(communication, work, work->peer);
        }
    }
    return any;
}

static bool message_sweep(ek_communication *communication)
{
    bool any = false;
    for (filler **at = &communication->mailbox->fillers; *at;) {
        filler *one = *at;
        int rc = communication->transport->test(&one->request, NULL);
        if (rc == 0) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        ek_object_release(one->owner);
        free(one->data);
        free(one);
        any = true;
    }
    return any;
}

bool ek_messages_turn(ek_communication *communication)
{
    struct ek_messages *mailbox = communication->mailbox;
    if (communication->broken)
        return false;
    bool any = message_offer_new(communication);
    any |= message_read_new(communication);
    any |= message_match(communication);
    any |= message_finish(communication, &mailbox->sends);
    any |= message_finish(communication, &mailbox->receives);
    return any | message_sweep(communication);
}

bool ek_messages_are_open(const ek_communication *communication)
{
    const struct ek_messages *mailbox = communication->mailbox;
    return mailbox->sends || mailbox->receives || mailbox->fillers;
}

static void message_abort_list(ek_dist_work **list, bool broken)
{
    while (*list) {
        ek_dist_work *work = *list;
        if (work->state == EK_DIST_WORK_COMMITTED && !broken) {
            list = &work->next;
            continue;
        }
        *list = work->next;
        work->abandoned = work->request != NULL;
        ek_dist_work_abort(work);
    }
}

static void message_abort(ek_communication *communication)
{
    struct ek_messages *mailbox = communication->mailbox;
    message_abort_list(&mailbox->sends, communication->broken);
    message_abort_list(&mailbox->receives, communication->broken);
    ek_packet_drop(&mailbox->offers);
}

struct ek_messages *ek_messages_open(ek_communication *communication)
{
    communication->peers.add = message_add;
    communication->peers.first = message_first;
    communication->peers.abort = message_abort;
    communication->peers.take = message_take;
    return ek_calloc(1, sizeof(struct ek_messages));
}
