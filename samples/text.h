/* text.h: a text as bytes, from a file or a folder, what a trigram model makes of it, and texts
 * that a network writes. */
#ifndef SAMPLES_TEXT_H
#define SAMPLES_TEXT_H

#include <evenkeel/evenkeel.h>

typedef struct text {
    uint8_t *bytes; /* owned */
    int64_t count;
} text;

/* Reads a file, or all files of a folder whose names have no '.', in the order of their names. 0 or
 * a negative status: EK_E_IO, or EK_E_FORMAT if there are no bytes. */
int text_read(const char *path, text *all);
/* Divides a text: every tenth piece of TEXT_PIECE bytes is held out, and all others are for
 * training, so that both parts have something of everything. 0 or a negative status. */
enum { TEXT_PIECE = 4096 };
int text_divide(const text *all, text *training, text *held);
void text_free(text *of);

/* The cross entropy in nats per byte, over bytes 1 to `count` of the held-out part, of a model that
 * knows the two bytes before each: the training part's n-grams (ngram.h). 0 or a negative status.
 */
int trigram_loss(const text *training, const text *held, int64_t count, double *loss);

/* How a network of bytes writes. */
typedef struct text_writer {
    ek_module *network;
    ek_device device;   /* the network's */
    int64_t context;    /* bytes that the network sees at most */
    const char *prompt; /* what each text begins with */
    int64_t letters;    /* bytes behind the prompt */
    int64_t top_k;      /* each byte is one of so many likeliest */
    double temperature;
    uint64_t random; /* seed */
} text_writer;

/* Returns `count` strings of prompt and letters, each with its NUL, one behind the other. Bytes
 * that would move a terminal's cursor are question marks. Free them. NULL on an error. */
char *text_write(const text_writer *how, int count);

#endif
