/* saving.h: archives whose files threads write beside the program. */
#ifndef EK_TRAIN_SAVING_H
#define EK_TRAIN_SAVING_H

#include "archive/archive.h"
#include "group/world.h"

extern const char ek_save_name[]; /* begins the sentences of errors */

/* What one rank of a group writes. */
typedef struct ek_saving {
    ek_process_group *group;
    int root;      /* the rank in the group that writes the index, or the only file */
    bool in_parts; /* each rank writes a part */
    ek_set_parts parts;
    char *path;  /* the set's, or the only file's; owned */
    char *file;  /* of this rank's part, or the only file's; owned; NULL: this rank writes none */
    char *index; /* the index's path; owned; NULL: this rank writes none */
    ek_bytes content, index_content;
    /* ek_saving_new_work and ek_saving_start fill the rest. */
    struct ek_saving *next;
    ek_communication *communication; /* NULL: there are no other ranks */
    int size, rank, *ranks;          /* the group's, which may end before the saving */
    ek_kept_packet *posts;           /* as many as this rank will send; owned */
    ek_dist_work *work;
    pthread_t thread;
    bool threaded;
} ek_saving;

/* Waits until this rank's savings in the group's world have ended. */
void ek_saving_await(const ek_process_group *group);
/* Allocates all that the saving needs. Returns a work for ek_dist_wait; NULL with an error. */
ek_dist_work *ek_saving_new_work(ek_saving *saving);
/* Starts the work, which can't fail to start. All ranks of the group have come to this call. */
void ek_saving_start(ek_saving *saving);
void ek_saving_free(ek_saving *saving);

#endif
