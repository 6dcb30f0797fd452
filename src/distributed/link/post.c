/* post.c: see post.h. */
#include "link/post.h"

#include <stdlib.h>

#include "core/clock.h"
#include "core/thread.h"

/* The caller holds the lock. */
static void post_append(ek_kept_packet **list, ek_kept_packet *one)
{
    while (*list)
        list = &(*list)->next;
    one->next = NULL;
    *list = one;
}

void ek_post_send(ek_communication *communication, ek_kept_packet *one)
{
    one->packet.kind = EK_PACKET_POST;
    pthread_mutex_lock(&communication->lock);
    post_append(&communication->outbox, one);
    communication->woken = true;
    pthread_cond_signal(&communication->wake);
    pthread_mutex_unlock(&communication->lock);
}

int ek_post_take(ek_communication *communication, int from, ek_packet *packet)
{
    ek_kept_packet **at, *one = NULL;
    ek_error_record error = {.status = 0};
    pthread_mutex_lock(&communication->lock);
    communication->awaited = from;
    communication->awaiting = ek_clock_ns();
    for (;;) {
        for (at = &communication->inbox; *at && (*at)->from != from;)
            at = &(*at)->next;
        if (*at || communication->broken)
            break;
        pthread_cond_wait(&communication->ended, &communication->lock);
    }
    communication->awaiting = 0;
    if (*at) {
        one = *at;
        *at = one->next;
    } else {
        error = communication->failure.error;
    }
    pthread_mutex_unlock(&communication->lock);
    if (!one)
        return ek_error_raise(&error);
    *packet = one->packet;
    free(one);
    return 0;
}

/* Breaks the world if the post that a thread awaits since `awaiting` is late. */
static void post_await(ek_communication *communication, uint64_t awaiting, int from)
{
    const double waited = awaiting ? (double)(ek_clock_ns() - awaiting) * 1e-9 : 0;
    if (waited <= communication->world->timeout || communication->broken)
        return;
    EK_FAIL(EK_E_TIMEOUT, "%s waited %.1f s for rank %d on %s", ek_verb_name(EK_VERB_SAVE), waited,
            from, communication->hosts[from]);
    ek_communication_break_here(communication);
}

bool ek_posts_turn(ek_communication *communication)
{
    pthread_mutex_lock(&communication->lock);
    ek_kept_packet *posted = communication->outbox;
    communication->outbox = NULL;
    const uint64_t awaiting = communication->awaiting;
    const int awaited = communication->awaited;
    pthread_mutex_unlock(&communication->lock);
    const bool any = posted;
    post_await(communication, awaiting, awaited);
    for (ek_kept_packet *one = posted; one && !communication->broken; one = one->next)
        ek_packet_send(communication, one->from, &one->packet);
    ek_packet_drop(&posted);
    return any;
}

void ek_posts_keep(ek_communication *communication, int from, const ek_packet *packet)
{
    ek_kept_packet *one = ek_calloc(1, sizeof *one);
    if (!one) {
        ek_communication_break_here(communication);
        return;
    }
    one->from = from;
    one->packet = *packet;
    pthread_mutex_lock(&communication->lock);
    post_append(&communication->inbox, one);
    pthread_cond_broadcast(&communication->ended);
    pthread_mutex_unlock(&communication->lock);
}
