/* pickle.h: reads Python's pickles, as protocols 2 to 5 write them, as plain data.
 *
 * A pickle is a program for a machine with a stack. This machine makes numbers, texts, lists and
 * dictionaries. It looks up no class and calls no function: a call becomes a record of the called
 * name and its arguments. The code that reads the result decides which names it supports.
 *
 * Nothing in a pickle is trusted. Each of its bytes makes at most one object of 24 bytes and moves
 * at most one item, so that memory is bounded by some 50 times its length. Objects may contain
 * themselves: a walk through them must bound its depth. */
#ifndef EK_DATA_PICKLE_H
#define EK_DATA_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ek_pickle_kind {
    EK_PICKLE_NONE,
    EK_PICKLE_INT, /* booleans too */
    EK_PICKLE_FLOAT,
    EK_PICKLE_TEXT,       /* bytes too */
    EK_PICKLE_LIST,       /* tuples and sets too */
    EK_PICKLE_DICT,       /* items: key, value, key, value, ... */
    EK_PICKLE_GLOBAL,     /* the name of a class or function */
    EK_PICKLE_CALL,       /* items: what was appended, or keys and values that were set */
    EK_PICKLE_PERSISTENT, /* an object outside of the pickle, by an id */
    EK_PICKLE_LARGE       /* a whole number of more than 64 bits */
} ek_pickle_kind;

/* Members of type int that refer to objects are indices into ek_pickle.objects; -1 is none. Several
 * places may refer to one object: None and small numbers exist once. */
typedef struct ek_pickle_object {
    ek_pickle_kind kind;
    bool has_nul; /* a text has a NUL in it */
    union {
        int64_t integer;
        double floating;
        struct {
            const char *bytes; /* in the pickle, without a NUL behind */
            size_t nbytes;
        } text;
        struct {
            int begin, count, room; /* a list's or dictionary's place in ek_pickle.items */
        } items;
        struct {
            int module, name; /* texts */
        } global;
        struct {
            int callee, arguments;
            int state; /* the argument of __setstate__ */
            int items; /* the list of appended objects, or of keys and values that were set */
        } call;
        int persistent; /* the id */
    } as;
} ek_pickle_object;

enum { EK_PICKLE_SMALL = 256 }; /* whole numbers from 0 to 255 exist once */

typedef struct ek_pickle {
    const char *what, *path; /* borrowed, for error messages */
    const unsigned char *bytes;
    size_t nbytes;
    size_t at; /* offset of the next byte */
    ek_pickle_object *objects;
    int count, room;
    int *items; /* the items of all lists and dictionaries */
    int item_count, item_room;
    int small[EK_PICKLE_SMALL + 1]; /* 1 + the object of a small number, and of None; 0: not yet */
    int *stack;                     /* objects, or PICKLE_MARK */
    int depth, stack_room;
    int *memo; /* objects by the numbers that the pickle gave them */
    int memo_count, memo_room;
} ek_pickle;

/* Reads the pickle that begins at pickle->at, and moves `at` past it. Returns the index of its
 * object, or EK_E_FORMAT with what is wrong and where. Objects of earlier calls stay. */
int ek_pickle_read(ek_pickle *pickle);
void ek_pickle_close(ek_pickle *pickle);

/* Returns true if the object is a text, or a global's "module.name", that equals `text`. */
bool ek_pickle_is_text(const ek_pickle *pickle, int object, const char *text);
bool ek_pickle_is_global(const ek_pickle *pickle, int object, const char *module, const char *name);
/* Returns the items of a list or a dictionary, or the objects appended to the result of a call.
 * *count is 0 for other objects, and for -1. */
const int *ek_pickle_items(const ek_pickle *pickle, int object, int *count);
/* Returns item `index` of a list; -1 if the object is no list or has no such item. */
int ek_pickle_item(const ek_pickle *pickle, int object, int index);
/* Returns the value of a text key in a dictionary; -1 if there is none. */
int ek_pickle_value(const ek_pickle *pickle, int object, const char *key);
/* Reads a whole number. Returns false if the object isn't one. */
bool ek_pickle_integer(const ek_pickle *pickle, int object, int64_t *integer);

#endif
