/* saving.c: see saving.h. The road of a saving, on a thread of each rank:
 *
 *     saving_main        writes this rank's file
 *       saving_meet      tells the root's thread the outcome (post.h). The root's thread finds the
 *                        first rank that failed, or replaces the index, and tells all ranks
 *       saving_end       removes the older parts. After a failure, removes this rank's new part */
#include "train/saving.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link/post.h"

const char ek_save_name[] = "dist_archive_save";

/* ---- savings under way ---- */

static pthread_mutex_t saving_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static pthread_cond_t saving_ended = PTHREAD_COND_INITIALIZER;
static ek_saving *saving_first;

static bool saving_is_under_way(const ek_communication *communication)
{
    const ek_saving *one = saving_first;
    while (one && one->communication != communication)
        one = one->next;
    return one;
}

void ek_saving_await(const ek_process_group *group)
{
    pthread_mutex_lock(&saving_lock);
    while (saving_is_under_way(group->communication))
        pthread_cond_wait(&saving_ended, &saving_lock);
    pthread_mutex_unlock(&saving_lock);
}

/* ---- the ranks' outcomes ---- */

/* How a saving went. */
typedef struct outcome {
    ek_error_record error;
    bool commit; /* all parts were written, so that the index may have been replaced */
} outcome;

static void saving_post(ek_saving *s, int rank, const outcome *of)
{
    ek_kept_packet *one = s->posts;
    s->posts = one->next;
    one->from = s->ranks[rank];
    one->packet = (ek_packet){.status = of->error.status,
                              .number = (uint64_t)of->error.origin,
                              .silent = of->commit};
    snprintf(one->packet.text, sizeof one->packet.text, "%.*s", (int)sizeof one->packet.text - 1,
             of->error.message);
    ek_post_send(s->communication, one);
}

static void saving_take(const ek_saving *s, int rank, outcome *of)
{
    ek_packet packet;
    if (ek_post_take(s->communication, s->ranks[rank], &packet) < 0) {
        ek_error_take(&of->error);
        return;
    }
    of->error.status = packet.status;
    of->error.origin = (int)packet.number;
    of->commit = packet.silent;
    snprintf(of->error.message, sizeof of->error.message, "%.*s", (int)sizeof packet.text - 1,
             packet.text);
}

/* Finds the first rank that failed. If there is none, replaces the index. */
static outcome saving_decide(ek_saving *s, outcome own)
{
    outcome first = {.commit = false};
    for (int r = 0; r < s->size; r++) {
        outcome one = own;
        if (r != s->root)
            saving_take(s, r, &one);
        if (one.error.status < 0 && first.error.status >= 0)
            first = one;
        if (first.error.status < 0 && !first.error.origin)
            first.error.origin = s->ranks[r] + 1;
    }
    if (first.error.status < 0 || !s->index)
        return first;
    first.commit = true;
    if (ek_safetensors_write_image(ek_save_name, s->index, s->index_content) < 0) {
        ek_error_take(&first.error);
        first.error.origin = s->ranks[s->root] + 1;
    }
    return first;
}

/* Returns the outcome of all ranks. */
static outcome saving_meet(ek_saving *s, outcome own)
{
    if (s->rank != s->root) {
        saving_post(s, s->root, &own);
        own.commit = own.error.status >= 0; /* counts if the root's answer is lost */
        saving_take(s, s->root, &own);
        return own;
    }
    outcome all = saving_decide(s, own);
    for (int r = 0; r < s->size; r++)
        if (r != s->root)
            saving_post(s, r, &all);
    return all;
}

/* ---- the thread ---- */

static void saving_end(ek_saving *s, const outcome *of)
{
    ek_error_record *error = &s->work->error;
    const int origin = of->error.origin - 1;
    *error = of->error;
    if (s->in_parts && error->status >= 0)
        ek_set_clean(s->path, s->parts);
    else if (s->in_parts && !of->commit)
        unlink(s->file);
    if (error->status < 0 && origin >= 0 && s->size > 1 && origin != s->ranks[s->rank]) {
        error->status = EK_E_ABORTED;
        snprintf(error->message, sizeof error->message, "rank %d on %s: %.900s", origin,
                 s->communication->hosts[origin], of->error.message);
    }
}

static void *saving_main(void *user)
{
    ek_saving *s = user;
    outcome of = {.commit = false};
    if (s->file && ek_safetensors_write_image(ek_save_name, s->file, s->content) < 0)
        ek_error_take(&of.error);
    free(s->content.data);
    s->content.data = NULL;
    of = saving_meet(s, of);
    saving_end(s, &of);
    s->work->ended = true; /* ek_dist_wait still waits for this thread's end */
    pthread_mutex_lock(&saving_lock);
    ek_saving **at = &saving_first;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_cond_broadcast(&saving_ended);
    pthread_mutex_unlock(&saving_lock);
    return NULL;
}

/* ---- on the program's thread ---- */

static int saving_wait(ek_dist_work *work)
{
    ek_saving *s = work->user;
    if (s->threaded)
        pthread_join(s->thread, NULL);
    ek_error_record error = work->error;
    error.told = true;
    ek_dist_work_free(work);
    ek_saving_free(s);
    return error.status < 0 ? ek_error_raise(&error) : 0;
}

static const ek_verb saving_verb = {.id = EK_VERB_SAVE, .wait = saving_wait};

ek_dist_work *ek_saving_new_work(ek_saving *s)
{
    const ek_process_group *group = s->group;
    s->communication = group->communication;
    s->size = group->size;
    s->rank = group->rank;
    s->ranks = ek_calloc((size_t)s->size, sizeof *s->ranks);
    for (int r = 0; s->ranks && r < s->size; r++)
        s->ranks[r] = group->ranks[r];
    bool made = s->ranks;
    for (int posts = s->rank != s->root ? 1 : s->size - 1; posts > 0 && made; posts--) {
        ek_kept_packet *one = ek_calloc(1, sizeof *one);
        made = one;
        if (one) {
            one->next = s->posts;
            s->posts = one;
        }
    }
    s->work = made ? ek_dist_work_new(s->group, &saving_verb, 0) : NULL;
    if (s->work)
        s->work->user = s;
    return s->work;
}

void ek_saving_start(ek_saving *s)
{
    ek_process_group *owner = s->communication ? s->communication->world : s->group;
    pthread_mutex_lock(&saving_lock);
    owner->await_saves = ek_saving_await;
    s->next = saving_first;
    saving_first = s;
    pthread_mutex_unlock(&saving_lock);
    s->threaded = pthread_create(&s->thread, NULL, saving_main, s) == 0;
    if (!s->threaded)
        saving_main(s);
}

void ek_saving_free(ek_saving *s)
{
    if (!s)
        return;
    ek_packet_drop(&s->posts);
    free(s->ranks);
    free(s->content.data);
    free(s->index_content.data);
    free(s->path);
    free(s->file);
    free(s->index);
    free(s);
}
