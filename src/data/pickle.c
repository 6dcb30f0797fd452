/* pickle.c: see pickle.h. The operations are those of CPython's Lib/pickle.py and its
 * documentation in Lib/pickletools.py. */
#include "data/pickle.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum { PICKLE_NONE = -1, PICKLE_MARK = INT_MIN, NEWEST_PROTOCOL = 5, STOPPED = 1 };

static int pickle_fail(const ek_pickle *p, const char *text)
{
    return EK_FAIL_IN(EK_E_FORMAT, p, "damaged pickle, at its byte %zu: %s", p->at, text);
}

/* ---- bytes ---- */

/* Takes `nbytes` bytes; *bytes points to the first. */
static int pickle_take(ek_pickle *p, uint64_t nbytes, const unsigned char **bytes)
{
    if (nbytes > p->nbytes - p->at)
        return pickle_fail(p, "it ends too early");
    *bytes = p->bytes + p->at;
    p->at += (size_t)nbytes;
    return 0;
}

/* Takes a little-endian number of `size` bytes, at most 8. */
static int pickle_take_number(ek_pickle *p, int size, uint64_t *number)
{
    const unsigned char *bytes = NULL;
    EK_TRY(pickle_take(p, (uint64_t)size, &bytes));
    *number = 0;
    for (int i = 0; i < size; i++)
        *number |= (uint64_t)bytes[i] << 8 * i;
    return 0;
}

/* Takes the rest of a line. */
static int pickle_take_line(ek_pickle *p, const char **text, size_t *nbytes)
{
    const unsigned char *begin = p->bytes + p->at;
    const unsigned char *end = memchr(begin, '\n', p->nbytes - p->at);
    if (!end)
        return pickle_fail(p, "it ends too early");
    *text = (const char *)begin;
    *nbytes = (size_t)(end - begin);
    p->at += *nbytes + 1;
    return 0;
}

/* ---- objects ---- */

/* Returns the index of a new object, or a negative status. */
static int pickle_new(ek_pickle *p, ek_pickle_object object)
{
    if (p->count == INT_MAX)
        return pickle_fail(p, "more than 2^31 objects");
    EK_TRY(ek_grow(&p->objects, &p->room, p->count + 1));
    p->objects[p->count] = object;
    return p->count++;
}

/* Makes room for `more` items of a list or dictionary. If its items aren't the last of all items,
 * they are moved to the end first. */
static int pickle_make_room(ek_pickle *p, int object, int more)
{
    ek_pickle_object *o = &p->objects[object];
    int begin = o->as.items.begin, count = o->as.items.count;
    bool last = begin + o->as.items.room == p->item_count;
    int64_t room = count + (int64_t)(count > more ? count : more);
    if (more <= o->as.items.room - count)
        return 0;
    if (room > INT_MAX - p->item_count)
        return pickle_fail(p, "more than 2^31 items");
    int to = last ? begin : p->item_count;
    EK_TRY(ek_grow(&p->items, &p->item_room, to + (int)room));
    if (!last && count > 0)
        memcpy(p->items + to, p->items + begin, (size_t)count * sizeof *p->items);
    p->item_count = to + (int)room;
    o->as.items.begin = to;
    o->as.items.room = (int)room;
    return 0;
}

/* ---- the stack ---- */

static int pickle_push(ek_pickle *p, int object)
{
    if (object < 0 && object != PICKLE_MARK)
        return object; /* the error of the call that was to make it */
    EK_TRY(ek_grow(&p->stack, &p->stack_room, p->depth + 1));
    p->stack[p->depth++] = object;
    return 0;
}

static int pickle_push_new(ek_pickle *p, ek_pickle_object object)
{
    int made = pickle_new(p, object);
    EK_TRY(made);
    return pickle_push(p, made);
}

/* Returns the object at the top, or a negative status if there is none. */
static int pickle_top(const ek_pickle *p)
{
    if (p->depth == 0 || p->stack[p->depth - 1] == PICKLE_MARK)
        return pickle_fail(p, "nothing is on the stack");
    return p->stack[p->depth - 1];
}

static int pickle_pop(ek_pickle *p)
{
    int top = pickle_top(p);
    EK_TRY(top);
    p->depth--;
    return top;
}

/* Returns how many objects are above the last mark, or a negative status. */
static int pickle_above_mark(const ek_pickle *p)
{
    int mark = p->depth - 1;
    while (mark >= 0 && p->stack[mark] != PICKLE_MARK)
        mark--;
    return mark < 0 ? pickle_fail(p, "a mark is missing") : p->depth - 1 - mark;
}

/* Moves the `count` objects at the top to the end of an object's items. */
static int pickle_move_items(ek_pickle *p, int object, int count)
{
    EK_TRY(pickle_make_room(p, object, count));
    ek_pickle_object *o = &p->objects[object];
    p->depth -= count;
    if (count > 0)
        memcpy(p->items + o->as.items.begin + o->as.items.count, p->stack + p->depth,
               (size_t)count * sizeof *p->items);
    o->as.items.count += count;
    return 0;
}

/* Pushes a container of the `count` objects at the top; `marked`: there is a mark below them. */
static int pickle_push_container(ek_pickle *p, ek_pickle_kind kind, int count, bool marked)
{
    EK_TRY(count);
    for (int i = 1; i <= count; i++)
        if (i > p->depth || p->stack[p->depth - i] == PICKLE_MARK)
            return pickle_fail(p, "nothing is on the stack");
    if (kind == EK_PICKLE_DICT && count % 2 != 0)
        return pickle_fail(p, "a key without a value");
    int made = pickle_new(p, (ek_pickle_object){.kind = kind});
    EK_TRY(made);
    EK_TRY(pickle_move_items(p, made, count));
    p->depth -= marked;
    return pickle_push(p, made);
}

/* Adds the objects above the last mark to the items of the object below the mark. */
static int pickle_extend(ek_pickle *p, bool pairs)
{
    int count = pickle_above_mark(p);
    EK_TRY(count);
    int below = p->depth - count - 2, object = below < 0 ? PICKLE_MARK : p->stack[below];
    if (object == PICKLE_MARK)
        return pickle_fail(p, "nothing is on the stack");
    if (pairs && count % 2 != 0)
        return pickle_fail(p, "a key without a value");
    ek_pickle_kind kind = p->objects[object].kind;
    if (kind != EK_PICKLE_CALL && kind != (pairs ? EK_PICKLE_DICT : EK_PICKLE_LIST))
        return pickle_fail(p, "items for what has none");
    if (kind == EK_PICKLE_CALL) {
        if (p->objects[object].as.call.items < 0) {
            int made = pickle_new(p, (ek_pickle_object){.kind = EK_PICKLE_LIST});
            EK_TRY(made);
            p->objects[object].as.call.items = made;
        }
        object = p->objects[object].as.call.items;
    }
    EK_TRY(pickle_move_items(p, object, count));
    p->depth--; /* the mark */
    return 0;
}

/* Adds the `count` objects at the top to the object below them. */
static int pickle_extend_by(ek_pickle *p, int count)
{
    int objects[2];
    for (int i = count - 1; i >= 0; i--) {
        objects[i] = pickle_pop(p);
        EK_TRY(objects[i]);
    }
    EK_TRY(pickle_top(p));
    EK_TRY(pickle_push(p, PICKLE_MARK));
    for (int i = 0; i < count; i++)
        EK_TRY(pickle_push(p, objects[i]));
    return pickle_extend(p, count == 2);
}

/* ---- operations: numbers and texts ---- */

/* Pushes the object in *small; if there is none, makes it and stores it there. */
static int pickle_push_small(ek_pickle *p, int *small, ek_pickle_object object)
{
    if (*small == 0) {
        int made = pickle_new(p, object);
        EK_TRY(made);
        *small = made + 1;
    }
    return pickle_push(p, *small - 1);
}

static int pickle_push_integer(ek_pickle *p, int64_t integer)
{
    ek_pickle_object object = {EK_PICKLE_INT, .as.integer = integer};
    return integer >= 0 && integer < EK_PICKLE_SMALL
               ? pickle_push_small(p, &p->small[integer], object)
               : pickle_push_new(p, object);
}

/* Pushes a number of `size` bytes; a number of four bytes is signed. */
static int pickle_push_sized_integer(ek_pickle *p, int size)
{
    uint64_t number = 0;
    EK_TRY(pickle_take_number(p, size, &number));
    return pickle_push_integer(p, size == 4 ? (int32_t)(uint32_t)number : (int64_t)number);
}

/* Pushes a number in two's complement. Its length in bytes is a number of `size` bytes. */
static int pickle_push_long(ek_pickle *p, int size)
{
    uint64_t nbytes = 0, number = 0;
    const unsigned char *bytes = NULL;
    EK_TRY(pickle_take_number(p, size, &nbytes));
    EK_TRY(pickle_take(p, nbytes, &bytes));
    if (nbytes > 8)
        return pickle_push_new(p, (ek_pickle_object){.kind = EK_PICKLE_LARGE});
    bool negative = nbytes > 0 && bytes[nbytes - 1] & 0x80;
    for (uint64_t i = 0; i < 8; i++)
        number |= (uint64_t)(i < nbytes ? bytes[i] : negative ? 0xff : 0) << 8 * i;
    return pickle_push_integer(p, (int64_t)number);
}

/* Floating numbers are big-endian. */
static int pickle_push_float(ek_pickle *p)
{
    const unsigned char *bytes = NULL;
    uint64_t bits = 0;
    double value;
    EK_TRY(pickle_take(p, sizeof value, &bytes));
    for (size_t i = 0; i < sizeof value; i++)
        bits = bits << 8 | bytes[i];
    memcpy(&value, &bits, sizeof value);
    return pickle_push_new(p, (ek_pickle_object){EK_PICKLE_FLOAT, .as.floating = value});
}

static ek_pickle_object pickle_text_object(const char *bytes, size_t nbytes)
{
    return (ek_pickle_object){.kind = EK_PICKLE_TEXT,
                              .has_nul = nbytes > 0 && memchr(bytes, '\0', nbytes),
                              .as.text = {bytes, nbytes}};
}

/* Pushes a text. Its length in bytes is a number of `size` bytes. */
static int pickle_push_text(ek_pickle *p, int size)
{
    uint64_t nbytes = 0;
    const unsigned char *bytes = NULL;
    EK_TRY(pickle_take_number(p, size, &nbytes));
    EK_TRY(pickle_take(p, nbytes, &bytes));
    return pickle_push_new(p, pickle_text_object((const char *)bytes, (size_t)nbytes));
}

/* ---- operations: names and calls ---- */

/* Pushes the name `module`.`name`. Each is the index of a text or a negative status. */
static int pickle_push_global(ek_pickle *p, int module, int name)
{
    EK_TRY(module);
    EK_TRY(name);
    if (p->objects[module].kind != EK_PICKLE_TEXT || p->objects[name].kind != EK_PICKLE_TEXT)
        return pickle_fail(p, "a name that is no text");
    return pickle_push_new(p, (ek_pickle_object){EK_PICKLE_GLOBAL, .as.global = {module, name}});
}

static int pickle_push_global_lines(ek_pickle *p)
{
    const char *module = NULL, *name = NULL;
    size_t module_nbytes = 0, name_nbytes = 0;
    EK_TRY(pickle_take_line(p, &module, &module_nbytes));
    EK_TRY(pickle_take_line(p, &name, &name_nbytes));
    int first = pickle_new(p, pickle_text_object(module, module_nbytes));
    EK_TRY(first);
    return pickle_push_global(p, first, pickle_new(p, pickle_text_object(name, name_nbytes)));
}

static int pickle_push_global_popped(ek_pickle *p)
{
    int name = pickle_pop(p);
    EK_TRY(name);
    return pickle_push_global(p, pickle_pop(p), name);
}

/* Pushes the record of a call. With `keywords` there is a dictionary of keyword arguments, which is
 * dropped. */
static int pickle_push_call(ek_pickle *p, bool keywords)
{
    if (keywords)
        EK_TRY(pickle_pop(p));
    int arguments = pickle_pop(p);
    EK_TRY(arguments);
    int callee = pickle_pop(p);
    EK_TRY(callee);
    return pickle_push_new(p, (ek_pickle_object){EK_PICKLE_CALL,
                                                 .as.call = {callee, arguments, PICKLE_NONE,
                                                             PICKLE_NONE}});
}

static int pickle_push_persistent(ek_pickle *p)
{
    int id = pickle_pop(p);
    EK_TRY(id);
    return pickle_push_new(p, (ek_pickle_object){EK_PICKLE_PERSISTENT, .as.persistent = id});
}

/* Pops a state, and stores it in the object below, if that is a call. This reader keeps no state of
 * other objects. */
static int pickle_build(ek_pickle *p)
{
    int state = pickle_pop(p);
    EK_TRY(state);
    int object = pickle_top(p);
    EK_TRY(object);
    if (p->objects[object].kind == EK_PICKLE_CALL)
        p->objects[object].as.call.state = state;
    return 0;
}

/* ---- operations: the memo ---- */

/* Stores the object at the top under a number. Python numbers stored objects from 0 on, so that no
 * number exceeds the pickle's length. */
static int pickle_memo_put(ek_pickle *p, uint64_t number)
{
    int top = pickle_top(p);
    EK_TRY(top);
    if (number >= p->nbytes || number >= INT_MAX)
        return pickle_fail(p, "a memo number larger than the pickle");
    EK_TRY(ek_grow(&p->memo, &p->memo_room, (int)number + 1));
    while (p->memo_count <= (int)number)
        p->memo[p->memo_count++] = PICKLE_NONE;
    p->memo[number] = top;
    return 0;
}

static int pickle_memo_put_sized(ek_pickle *p, int size)
{
    uint64_t number = 0;
    EK_TRY(pickle_take_number(p, size, &number));
    return pickle_memo_put(p, number);
}

static int pickle_memo_get(ek_pickle *p, int size)
{
    uint64_t number = 0;
    EK_TRY(pickle_take_number(p, size, &number));
    if (number >= (uint64_t)p->memo_count || p->memo[number] == PICKLE_NONE)
        return pickle_fail(p, "a memo number that was not given");
    return pickle_push(p, p->memo[number]);
}

/* ---- the machine ---- */

static int pickle_check_protocol(ek_pickle *p)
{
    uint64_t protocol = 0;
    EK_TRY(pickle_take_number(p, 1, &protocol));
    return protocol <= NEWEST_PROTOCOL
               ? 0
               : EK_FAIL_IN(EK_E_FORMAT, p, "a pickle of protocol %d; up to %d are read",
                            (int)protocol, NEWEST_PROTOCOL);
}

static int pickle_pop_to_mark(ek_pickle *p)
{
    int count = pickle_above_mark(p);
    EK_TRY(count);
    p->depth -= count + 1;
    return 0;
}

static int pickle_skip(ek_pickle *p, int nbytes)
{
    const unsigned char *bytes = NULL;
    return pickle_take(p, (uint64_t)nbytes, &bytes);
}

/* Runs one operation. Returns STOPPED at the end. */
static int pickle_run(ek_pickle *p, int operation)
{
    switch (operation) {
    case 0x80: /* PROTO */
        return pickle_check_protocol(p);
    case 0x95: /* FRAME */
        return pickle_skip(p, 8);
    case '.': /* STOP */
        return STOPPED;
    case '(': /* MARK */
        return pickle_push(p, PICKLE_MARK);
    case '0': /* POP, which may pop a mark */
        if (p->depth == 0)
            return pickle_top(p);
        p->depth--;
        return 0;
    case '1': /* POP_MARK */
        return pickle_pop_to_mark(p);
    case '2': { /* DUP */
        int top = pickle_top(p);
        return top < 0 ? top : pickle_push(p, top);
    }
    case 'N': /* NONE */
        return pickle_push_small(p, &p->small[EK_PICKLE_SMALL],
                                 (ek_pickle_object){.kind = EK_PICKLE_NONE});
    case 0x88: /* NEWTRUE */
        return pickle_push_integer(p, 1);
    case 0x89: /* NEWFALSE */
        return pickle_push_integer(p, 0);
    case 'J': /* BININT */
        return pickle_push_sized_integer(p, 4);
    case 'K': /* BININT1 */
        return pickle_push_sized_integer(p, 1);
    case 'M': /* BININT2 */
        return pickle_push_sized_integer(p, 2);
    case 0x8a: /* LONG1 */
        return pickle_push_long(p, 1);
    case 0x8b: /* LONG4 */
        return pickle_push_long(p, 4);
    case 'G': /* BINFLOAT */
        return pickle_push_float(p);
    case 'U':  /* SHORT_BINSTRING */
    case 'C':  /* SHORT_BINBYTES */
    case 0x8c: /* SHORT_BINUNICODE */
        return pickle_push_text(p, 1);
    case 'T': /* BINSTRING */
    case 'B': /* BINBYTES */
    case 'X': /* BINUNICODE */
        return pickle_push_text(p, 4);
    case 0x8d: /* BINUNICODE8 */
    case 0x8e: /* BINBYTES8 */
    case 0x96: /* BYTEARRAY8 */
        return pickle_push_text(p, 8);
    case ']':  /* EMPTY_LIST */
    case ')':  /* EMPTY_TUPLE */
    case 0x8f: /* EMPTY_SET */
        return pickle_push_container(p, EK_PICKLE_LIST, 0, false);
    case 0x85: /* TUPLE1 */
        return pickle_push_container(p, EK_PICKLE_LIST, 1, false);
    case 0x86: /* TUPLE2 */
        return pickle_push_container(p, EK_PICKLE_LIST, 2, false);
    case 0x87: /* TUPLE3 */
        return pickle_push_container(p, EK_PICKLE_LIST, 3, false);
    case 't':  /* TUPLE */
    case 'l':  /* LIST */
    case 0x91: /* FROZENSET */
        return pickle_push_container(p, EK_PICKLE_LIST, pickle_above_mark(p), true);
    case '}': /* EMPTY_DICT */
        return pickle_push_container(p, EK_PICKLE_DICT, 0, false);
    case 'd': /* DICT */
        return pickle_push_container(p, EK_PICKLE_DICT, pickle_above_mark(p), true);
    case 'a': /* APPEND */
        return pickle_extend_by(p, 1);
    case 's': /* SETITEM */
        return pickle_extend_by(p, 2);
    case 'e':  /* APPENDS */
    case 0x90: /* ADDITEMS */
        return pickle_extend(p, false);
    case 'u': /* SETITEMS */
        return pickle_extend(p, true);
    case 'c': /* GLOBAL */
        return pickle_push_global_lines(p);
    case 0x93: /* STACK_GLOBAL */
        return pickle_push_global_popped(p);
    case 'R':  /* REDUCE */
    case 0x81: /* NEWOBJ */
        return pickle_push_call(p, false);
    case 0x92: /* NEWOBJ_EX */
        return pickle_push_call(p, true);
    case 'b': /* BUILD */
        return pickle_build(p);
    case 'Q': /* BINPERSID */
        return pickle_push_persistent(p);
    case 'q': /* BINPUT */
        return pickle_memo_put_sized(p, 1);
    case 'r': /* LONG_BINPUT */
        return pickle_memo_put_sized(p, 4);
    case 0x94: /* MEMOIZE */
        return pickle_memo_put(p, (uint64_t)p->memo_count);
    case 'h': /* BINGET */
        return pickle_memo_get(p, 1);
    case 'j': /* LONG_BINGET */
        return pickle_memo_get(p, 4);
    default:
        p->at--;
        return EK_FAIL_IN(EK_E_FORMAT, p,
                          "the pickle's byte %zu, 0x%02x, is no operation that protocols 2 to %d "
                          "write for plain data",
                          p->at, (unsigned)operation, NEWEST_PROTOCOL);
    }
}

int ek_pickle_read(ek_pickle *pickle)
{
    const unsigned char *operation = NULL;
    int status = 0;
    pickle->depth = pickle->memo_count = 0;
    while (status == 0) {
        EK_TRY(pickle_take(pickle, 1, &operation));
        status = pickle_run(pickle, *operation);
    }
    return status < 0 ? status : pickle_top(pickle);
}

void ek_pickle_close(ek_pickle *pickle)
{
    free(pickle->objects);
    free(pickle->items);
    free(pickle->stack);
    free(pickle->memo);
    *pickle = (ek_pickle){.what = pickle->what, .path = pickle->path};
}

/* ---- looking at objects ---- */

bool ek_pickle_is_text(const ek_pickle *pickle, int object, const char *text)
{
    const ek_pickle_object *o = object < 0 ? NULL : &pickle->objects[object];
    return o && o->kind == EK_PICKLE_TEXT && o->as.text.nbytes == strlen(text) &&
           memcmp(o->as.text.bytes, text, o->as.text.nbytes) == 0;
}

bool ek_pickle_is_global(const ek_pickle *pickle, int object, const char *module, const char *name)
{
    const ek_pickle_object *o = object < 0 ? NULL : &pickle->objects[object];
    return o && o->kind == EK_PICKLE_GLOBAL &&
           ek_pickle_is_text(pickle, o->as.global.module, module) &&
           ek_pickle_is_text(pickle, o->as.global.name, name);
}

const int *ek_pickle_items(const ek_pickle *pickle, int object, int *count)
{
    const ek_pickle_object *o = object < 0 ? NULL : &pickle->objects[object];
    if (o && o->kind == EK_PICKLE_CALL)
        o = o->as.call.items < 0 ? NULL : &pickle->objects[o->as.call.items];
    bool has = o && (o->kind == EK_PICKLE_LIST || o->kind == EK_PICKLE_DICT);
    *count = has ? o->as.items.count : 0;
    return *count > 0 ? pickle->items + o->as.items.begin : NULL;
}

int ek_pickle_item(const ek_pickle *pickle, int object, int index)
{
    int count;
    const int *items = ek_pickle_items(pickle, object, &count);
    return index < count && pickle->objects[object].kind == EK_PICKLE_LIST ? items[index] : -1;
}

int ek_pickle_value(const ek_pickle *pickle, int object, const char *key)
{
    int count;
    const int *items = ek_pickle_items(pickle, object, &count);
    bool pairs = object >= 0 && pickle->objects[object].kind != EK_PICKLE_LIST;
    for (int i = 0; pairs && i + 1 < count; i += 2)
        if (ek_pickle_is_text(pickle, items[i], key))
            return items[i + 1];
    return -1;
}

bool ek_pickle_integer(const ek_pickle *pickle, int object, int64_t *integer)
{
    if (object < 0 || pickle->objects[object].kind != EK_PICKLE_INT)
        return false;
    *integer = pickle->objects[object].as.integer;
    return true;
}
