/* inquiry.c: asks other ranks where they are, whose data they lack, and for signs of life.
 *
 * The communication threads answer, so that an inquiry can tell a rank whose program hangs from a
 * rank whose process has stopped. Parts of messages are signs of life, too, because answers may
 * wait behind them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/locale.h"
#include "link/packet.h"

/* Seconds that other ranks have to answer an inquiry, and seconds that ranks 1 to 7 of a group give
 * rank 0 to ask before they do. Ranks 8 to 63 wait twice as long, and so on by factors of 8. */
static const double patience = 0.3, courtesy = 0.35;

/* Seconds between two questions for a sign of life, and seconds that ranks have to answer one. */
static const double life_interval = 0.5, life_patience = 1.5;

enum { INQUIRY_PLACE = 160 }; /* bytes of the text that says where a rank is */

/* What one rank has answered to an inquiry. */
typedef struct whereabouts {
    bool answered, in_call; /* in_call: in a call of the group */
    uint64_t calls;         /* how many calls of the group have ended on the rank */
    uint64_t heard;         /* how much had come from the rank when it was asked (inquiry_heard) */
    int lacks, lacked[EK_PACKET_LACKED]; /* ranks of the world, as in ek_packet */
    char place[INQUIRY_PLACE];
} whereabouts;

struct ek_inquiries {
    /* The inquiry under way. `asked` is the work that is late; NULL: there is no inquiry. `peer` is
     * the one rank of the world that was asked; negative: all ranks of the work's group. */
    ek_dist_work *asked;
    int peer;
    uint64_t asked_at;
    uint64_t moved;       /* communication->moved when the inquiry began */
    whereabouts *answers; /* per rank of the world */

    /* The last question for a sign of life, which was asked in the failure of epoch alive_epoch. */
    uint64_t alive_asked_at; /* ek_clock_ns() of the question; 0: none yet */
    uint32_t alive_epoch;
};

static ek_process_group *inquiry_group(ek_communication *communication, int number)
{
    ek_process_group *group = communication->groups;
    while (group && group->number != number)
        group = group->next;
    return group;
}

/* Writes where this rank is in a group, such as "is in call 3 of group 2, all_reduce, since 1.2 s".
 * Leaves out the name of the group that was asked about. */
static void inquiry_place_in(const ek_process_group *group, const ek_process_group *asked,
                             char place[INQUIRY_PLACE])
{
    const ek_dist_work *work = group->first;
    uint64_t call = group->calls + (work && work->state < EK_DIST_WORK_COMMITTED);
    char of[64] = "";
    if (group != asked)
        snprintf(of, sizeof of, " of %s", group->name);
    if (work && work->awaits_caller)
        snprintf(place, INQUIRY_PLACE, "is in call %llu%s, %s, and waits for its program",
                 (unsigned long long)call, of, ek_verb_name(work->verb->id));
    else if (work)
        ek_format(place, INQUIRY_PLACE, "is in call %llu%s, %s, since %.1f s",
                  (unsigned long long)call, of, ek_verb_name(work->verb->id),
                  (double)(ek_clock_ns() - work->began) * 1e-9);
    else
        ek_format(place, INQUIRY_PLACE, "is at call %llu%s, %s, which it left %.1f s ago",
                  (unsigned long long)call, of, ek_verb_name(group->last_verb),
                  (double)(ek_clock_ns() - group->last_ended) * 1e-9);
}

static void inquiry_place_in_message(const ek_dist_work *work, char place[INQUIRY_PLACE])
{
    char peer[32] = "any rank";
    if (work->peer >= 0)
        snprintf(peer, sizeof peer, "rank %d", work->peer);
    ek_format(place, INQUIRY_PLACE, "is in %s %s %s, since %.1f s", ek_verb_name(work->verb->id),
              work->verb->id == EK_VERB_SEND ? "to" : "from", peer,
              (double)(ek_clock_ns() - work->began) * 1e-9);
}

/* Writes where this rank is: in a call of the group that was asked about (NULL: this rank doesn't
 * know the group), in a call of another group, in a message, or after its last call. */
static void inquiry_place(const ek_communication *communication, const ek_process_group *asked,
                          char place[INQUIRY_PLACE])
{
    const ek_process_group *in = asked && asked->first ? asked : NULL, *last = NULL;
    for (const ek_process_group *group = communication->groups; group; group = group->next) {
        if (!in && group->first)
            in = group;
        if (group->last_ended && (!last || group->last_ended > last->last_ended))
            last = group;
    }
    const ek_dist_work *message = in ? NULL : communication->peers.first(communication);
    if (message)
        inquiry_place_in_message(message, place);
    else if (in || last)
        inquiry_place_in(in ? in : last, asked, place);
    else
        snprintf(place, INQUIRY_PLACE, "has made no call of %s yet",
                 asked ? asked->name : "the group");
}

/* Writes whose data this rank lacks in the group. */
static void inquiry_lacks(const ek_communication *communication, const ek_process_group *group,
                          int32_t *lacks, int32_t lacked[EK_PACKET_LACKED])
{
    *lacks = 0;
    for (int r = 0; r < group->size; r++)
        if (communication->transport->awaits(group->communicator, r) &&
            (*lacks)++ < EK_PACKET_LACKED)
            lacked[*lacks - 1] = group->ranks[r];
}

static void inquiry_answer(ek_communication *communication, int to, const ek_packet *question)
{
    ek_packet answer = {.kind = EK_PACKET_HERE};
    const ek_process_group *group = inquiry_group(communication, question->group);
    answer.number = group ? group->calls : 0;
    answer.in_call = group && group->first && !group->first->awaits_caller;
    if (group)
        inquiry_lacks(communication, group, &answer.lacks, answer.lacked);
    inquiry_place(communication, group, answer.text);
    ek_packet_send(communication, to, &answer);
}

/* Returns how many packets and parts of messages have come from a rank of the world. */
static uint64_t inquiry_heard(const ek_communication *communication, int rank)
{
    const ek_transport *transport = communication->transport;
    uint64_t heard = transport->moved(communication->notices, rank) +
                     transport->moved(communication->messages, rank);
    for (const ek_process_group *group = communication->groups; group; group = group->next)
        for (int r = 0; r < group->size; r++)
            if (group->ranks[r] == rank)
                heard += transport->moved(group->communicator, r);
    return heard;
}

/* Forgets a rank's last answer and asks the rank where it is. */
static void inquiry_ask(ek_communication *communication, int rank, const ek_packet *question)
{
    communication->inquiries->answers[rank] =
        (whereabouts){.heard = inquiry_heard(communication, rank)};
    ek_packet_send(communication, rank, question);
}

/* Tells whether a rank has answered, or has sent anything since it was asked. */
static bool inquiry_is_alive(const ek_communication *communication, int rank)
{
    const whereabouts *where = &communication->inquiries->answers[rank];
    return where->answered || where->heard != inquiry_heard(communication, rank);
}

static bool inquiry_is_asked(const ek_communication *communication, const ek_process_group *group,
                             int rank)
{
    int peer = communication->inquiries->peer;
    return rank != communication->place.rank && (peer < 0 || group->ranks[rank] == peer);
}

void ek_notices_inquire(ek_communication *communication, ek_dist_work *work, int peer)
{
    struct ek_inquiries *self = communication->inquiries;
    double late = (double)(ek_clock_ns() - work->began) * 1e-9 - work->timeout;
    for (int r = work->group->rank; peer < 0 && r > 0; r /= 8)
        late -= courtesy;
    if (self->asked || late < 0)
        return;
    self->asked = work;
    self->peer = peer;
    self->asked_at = ek_clock_ns();
    self->moved = communication->moved;
    ek_packet question = {.kind = EK_PACKET_WHERE, .group = work->group->number};
    for (int r = 0; r < work->group->size; r++)
        if (inquiry_is_asked(communication, work->group, r))
            inquiry_ask(communication, work->group->ranks[r], &question);
}

static void inquiry_forget(ek_communication *communication, const ek_dist_work *work)
{
    if (communication->inquiries->asked == work)
        communication->inquiries->asked = NULL;
}

static bool inquiry_are_all_alive(ek_communication *communication)
{
    struct ek_inquiries *self = communication->inquiries;
    bool all = true, first = self->alive_epoch != communication->epoch || !self->alive_asked_at;
    for (int r = 0; r < communication->place.size && !first; r++)
        all = all && (r == communication->place.rank || inquiry_is_alive(communication, r));
    double waited = (double)(ek_clock_ns() - self->alive_asked_at) * 1e-9;
    if (!first && (!all || waited < life_interval))
        return all || waited < life_patience;
    self->alive_epoch = communication->epoch;
    self->alive_asked_at = ek_clock_ns();
    ek_packet question = {.kind = EK_PACKET_WHERE};
    for (int r = 0; r < communication->place.size; r++)
        if (r != communication->place.rank)
            inquiry_ask(communication, r, &question);
    return true;
}

/* Writes which rank does not hear from which other rank, if all ranks are in the call. A rank that
 * waits for data may be held up by a rank that waits itself. So a connection counts as cut if its
 * sender waits for no rank but the receiver. Returns the number of bytes written. */
static int inquiry_describe_cuts(const ek_communication *communication,
                                 const ek_process_group *group, char *text, size_t room)
{
    int length = 0;
    for (int r = 0; r < group->size; r++) {
        int rank = group->ranks[r];
        const whereabouts *where = &communication->inquiries->answers[rank];
        for (int i = 0; i < where->lacks && i < EK_PACKET_LACKED && length < (int)room - 200; i++) {
            int from = where->lacked[i];
            const whereabouts *other = &communication->inquiries->answers[from];
            bool mutual = other->lacks == 1 && other->lacked[0] == rank;
            if (other->lacks == 0 || (mutual && rank < from))
                length +=
                    snprintf(text + length, room - (size_t)length,
                             mutual
                                 ? "; rank %d on %s and rank %d on %s do not hear from each other"
                                 : "; rank %d on %s does not hear from rank %d on %s",
                             rank, communication->hosts[rank], from, communication->hosts[from]);
        }
    }
    return length;
}

/* Writes where a rank is, if that rank holds up the call. A rank that waits for other ranks' data
 * in the call, or in the agreement of the call, does not. Returns the number of bytes written. */
static int inquiry_describe(const ek_communication *communication, const ek_dist_work *work,
                            int rank, char *text, size_t room)
{
    const whereabouts *where = &communication->inquiries->answers[rank];
    if (where->in_call && where->calls + (where->lacks > 0) >= work->group->calls &&
        !ek_dist_work_is_message(work))
        return 0;
    bool alive = inquiry_is_alive(communication, rank);
    return snprintf(text, room, "; rank %d on %s %s", rank, communication->hosts[rank],
                    where->answered ? where->place
                    : alive         ? "sends, but does not answer"
                                    : "does not answer");
}

bool ek_inquiries_turn(ek_communication *communication)
{
    struct ek_inquiries *self = communication->inquiries;
    const ek_dist_work *work = self->asked;
    if (!work)
        return false;
    if (communication->failing) {
        self->asked = NULL;
        return true;
    }
    const ek_process_group *group = work->group;
    bool all = true, alive = true;
    for (int r = 0; r < group->size; r++)
        if (inquiry_is_asked(communication, group, r)) {
            all = all && self->answers[group->ranks[r]].answered;
            alive = alive && inquiry_is_alive(communication, group->ranks[r]);
        }
    /* Answers may wait behind data. */
    double time = self->moved == communication->moved ? patience : life_patience;
    if (!all && (double)(ek_clock_ns() - self->asked_at) < time * 1e9)
        return false;
    whereabouts *mine = &self->answers[communication->place.rank];
    inquiry_lacks(communication, group, &mine->lacks, mine->lacked);
    ek_error_record error = {.status = EK_E_TIMEOUT};
    size_t room = sizeof error.message;
    int length =
        (int)ek_format(error.message, room, "%s (call %llu of %s) waited %.1f s",
                       ek_verb_name(work->verb->id),
                       (unsigned long long)group->calls + (work->state < EK_DIST_WORK_COMMITTED),
                       group->name, (double)(ek_clock_ns() - work->began) * 1e-9);
    int begin = length;
    for (int r = 0; r < group->size && length < (int)room - 200; r++) {
        if (inquiry_is_asked(communication, group, r))
            length += inquiry_describe(communication, work, group->ranks[r], error.message + length,
                                       room - (size_t)length);
        if (length > begin && work->first_missing_only)
            break;
    }
    if (length == begin)
        length += inquiry_describe_cuts(communication, group, error.message + length,
                                        room - (size_t)length);
    if (length == begin)
        snprintf(error.message + length, room - (size_t)length,
                 "; all ranks are in it, and its data does not arrive");
    self->asked = NULL;
    communication->silent = !alive;
    ek_communication_fail(communication, communication->place.rank, &error);
    return true;
}

void ek_inquiries_take(ek_communication *communication, int from, const ek_packet *packet)
{
    if (packet->kind == EK_PACKET_WHERE) {
        inquiry_answer(communication, from, packet);
        return;
    }
    whereabouts *where = &communication->inquiries->answers[from];
    *where = (whereabouts){.answered = true,
                           .in_call = packet->in_call,
                           .calls = packet->number,
                           .lacks = packet->lacks};
    memcpy(where->lacked, packet->lacked, sizeof where->lacked);
    snprintf(where->place, sizeof where->place, "%.*s", INQUIRY_PLACE - 1, packet->text);
}

struct ek_inquiries *ek_inquiries_open(ek_communication *communication)
{
    struct ek_inquiries *opened = ek_calloc(1, sizeof *opened);
    if (!opened)
        return NULL;
    opened->answers = ek_calloc((size_t)communication->place.size, sizeof *opened->answers);
    if (!opened->answers) {
        free(opened);
        return NULL;
    }
    communication->peers.are_all_alive = inquiry_are_all_alive;
    communication->peers.forget = inquiry_forget;
    return opened;
}

void ek_inquiries_close(ek_communication *communication)
{
    if (communication->inquiries)
        free(communication->inquiries->answers);
    free(communication->inquiries);
    communication->inquiries = NULL;
}
