/* slices.c: see slices.h.
 *
 * Sums are added in stretches. A stretch lies in a room of each device: first the device's own
 * terms, one after another as in a slab; then a place for the device's slice of every device's
 * terms. The place of the device's own terms, which are read where they lie, gets the sum. One
 * exchange does all of a stretch:
 *
 *     slices_pack      every device copies its terms to its room
 *     moves            every device gets its slice of the others' terms
 *     slices_sum       every device adds its slice
 *     moves            the device of the sums gets the other slices, unless it has added all
 *     slices_unpack    that device copies the sums to their memory, unless they arrived there
 *
 * Packing makes one block of a slice: between two devices NCCL then has one send for many tensors.
 * Packing also loads the kernel that adds later, so that no kernel has to be loaded while NCCL's
 * kernels wait for each other. */
#include "comm/slices.h"

#include <stdlib.h>

#include "core/lane.h"
#include "core/slab.h"
#include "kernels/kernels.h"

enum {
    MOST_AT_ONCE = 64,    /* tensors of a list that fits on the stack */
    WHOLE_BYTES = 1 << 16 /* a stretch of at most so many bytes isn't worth slices */
};

/* A range of a sum's elements, and where it lies in the stretch. */
typedef struct piece {
    const ek_addition *sum;
    int64_t begin, count, at;
} piece;

typedef struct slices {
    ek_dev *devs[EK_MAX_DEVICES]; /* in the order of terms */
    int devices, root;            /* devs[root] is the device of the sums */
    ek_dtype dtype;
    bool moved;    /* devices add what was moved to them; else the library adds */
    int64_t unit;  /* pieces and slices begin at multiples of this many elements */
    piece *pieces; /* the stretch */
    int count;
    int64_t elements; /* The stretch's elements, with the padding between pieces. */
    bool whole;       /* the root adds all: two devices save no bytes by slices */
    bool direct;      /* the sums lie in memory like the stretch, so that slices arrive there */
    ek_storage *rooms[EK_MAX_DEVICES];
    ek_block_move *moves; /* room for the moves of both steps */
} slices;

static ek_dev *slices_root_of(const ek_addition *sum)
{
    return sum->dev ? sum->dev : ek_tensor_dev(sum->out);
}

bool ek_slices_can_add(const ek_addition *sums, int count)
{
    ek_dev_set devs = {0};
    const ek_addition *first = &sums[0];
    for (int p = 0; p < first->count; p++)
        if (!first->terms[p] || ek_dev_set_add(&devs, ek_tensor_dev(first->terms[p])) != p)
            return false;
    for (int i = 0; i < count; i++) {
        const ek_tensor *out = sums[i].out;
        bool fits = sums[i].count == devs.count && out->dtype == first->out->dtype &&
                    slices_root_of(&sums[i]) == ek_tensor_dev(out) &&
                    ek_tensor_dev(out) == ek_tensor_dev(first->out);
        for (int p = 0; p < devs.count && fits; p++)
            fits = sums[i].terms[p] && ek_tensor_dev(sums[i].terms[p]) == devs.devs[p] &&
                   ek_comm_alike(sums[i].terms[p], out);
        if (!fits)
            return false;
    }
    return devs.count > 1 && ek_dtype_is_floating(first->out->dtype) &&
           ek_dev_set_find(&devs, ek_tensor_dev(first->out)) < devs.count;
}

/* ---- where a stretch lies ---- */

static ek_interval slices_cut(const slices *s, int d)
{
    if (s->whole)
        return (ek_interval){0, d == s->root ? s->elements : 0};
    return (ek_interval){ek_slab_cut(s->elements, s->unit, s->devices, d),
                         ek_slab_cut(s->elements, s->unit, s->devices, d + 1)};
}

/* Returns the element of a device's room at which its slice of the terms of device p begins. */
static int64_t slices_place(const slices *s, int p)
{
    const int64_t longest = slices_cut(s, s->whole ? s->root : 0).end;
    return ek_slab_pitch(s->dtype, s->elements) + p * ek_slab_pitch(s->dtype, longest);
}

static void *slices_address(const slices *s, int d, int64_t element)
{
    return (char *)s->rooms[d]->data + (size_t)element * ek_dtype_size(s->dtype);
}

static ek_tensor *slices_flat(const slices *s, ek_storage *storage, int64_t begin, int64_t count)
{
    return ek_tensor_member(storage, s->dtype, &(ek_shape){1, {count}}, &(int64_t){1}, begin);
}

/* Returns where the stretch begins in the storage of the sums, if the sums lie like the stretch. */
static int64_t slices_base(const slices *s)
{
    return s->pieces[0].sum->out->offset + s->pieces[0].begin;
}

static bool slices_are_direct(const slices *s)
{
    const ek_storage *storage = s->pieces[0].sum->out->storage;
    bool direct = true;
    for (int i = 0; i < s->count && direct; i++) {
        const piece *own = &s->pieces[i];
        direct = own->sum->out->storage == storage &&
                 own->sum->out->offset + own->begin == slices_base(s) + own->at;
    }
    return direct;
}

/* Returns where the sums arrive: in their memory, or at the beginning of the root's room. */
static char *slices_out(const slices *s)
{
    char *memory = s->pieces[0].sum->out->storage->data;
    return s->direct ? memory + (size_t)slices_base(s) * ek_dtype_size(s->dtype)
                     : slices_address(s, s->root, 0);
}

/* ---- what each device does ---- */

static int slices_device(const slices *s, const ek_dev *dev)
{
    int d = 0;
    while (s->devs[d] != dev)
        d++;
    return d;
}

/* Copies all pieces of device d's terms to its room; if `back`, the pieces in its room to the
 * sums. */
static int slices_copy(const slices *s, int d, bool back)
{
    ek_tensor *to[MOST_AT_ONCE];
    const ek_tensor *from[MOST_AT_ONCE];
    ek_dev *dev = s->devs[d];
    int n = 0;
    for (int i = 0; i < s->count; i++) {
        const piece *own = &s->pieces[i];
        ek_tensor *outside = back ? own->sum->out : own->sum->terms[d];
        ek_tensor *there = ek_comm_flat(outside, own->begin, own->begin + own->count);
        ek_tensor *here = slices_flat(s, s->rooms[d], own->at, own->count);
        if (!there || !here)
            return ek_error_pending();
        to[n] = back ? there : here;
        from[n++] = back ? here : there;
        if (n == MOST_AT_ONCE || i == s->count - 1) {
            EK_TRY(dev->backend->kernels->add_n(dev, n, to, from, 1));
            n = 0;
        }
    }
    return 0;
}

/* Padding is added, too, and must be finite in the sums' memory. */
static int slices_pack(void *user, ek_dev *dev)
{
    const slices *s = user;
    const int d = slices_device(s, dev);
    int64_t filled = 0;
    for (int i = 0; i < s->count; i++)
        filled += s->pieces[i].count;
    if (filled < s->elements)
        EK_TRY(ek_dev_zero(dev, s->rooms[d]->data, (size_t)s->elements * ek_dtype_size(s->dtype)));
    ek_scope scope = ek_scope_begin();
    int rc = slices_copy(s, d, false);
    ek_scope_end(&scope);
    return rc;
}

static int slices_sum_in_scope(const slices *s, int d)
{
    const ek_interval own = slices_cut(s, d);
    const int64_t count = own.end - own.begin;
    const ek_tensor *terms[EK_MAX_DEVICES];
    ek_dev *dev = s->devs[d];
    if (count == 0)
        return 0;
    for (int p = 0; p < s->devices; p++) {
        terms[p] = slices_flat(s, s->rooms[d], p == d ? own.begin : slices_place(s, p), count);
        if (!terms[p])
            return ek_error_pending();
    }
    ek_tensor *sum =
        d == s->root && s->direct
            ? slices_flat(s, s->pieces[0].sum->out->storage, slices_base(s) + own.begin, count)
            : slices_flat(s, s->rooms[d], slices_place(s, d), count);
    return sum ? dev->backend->kernels->add_n(dev, 1, &sum, terms, s->devices) : ek_error_pending();
}

static int slices_sum(void *user, ek_dev *dev)
{
    const slices *s = user;
    ek_scope scope = ek_scope_begin();
    int rc = slices_sum_in_scope(s, slices_device(s, dev));
    ek_scope_end(&scope);
    return rc;
}

/* In the root's room, sums of the library and slices that other devices have added lie at the
 * beginning. The slice that the root has added is copied there. */
static int slices_unpack_in_scope(const slices *s)
{
    const ek_interval own = slices_cut(s, s->root);
    ek_dev *dev = s->devs[s->root];
    ek_storage *room = s->rooms[s->root];
    const int64_t count = s->moved ? own.end - own.begin : 0;
    if (count > 0) {
        ek_tensor *to = slices_flat(s, room, own.begin, count);
        const ek_tensor *from = slices_flat(s, room, slices_place(s, s->root), count);
        if (!to || !from)
            return ek_error_pending();
        EK_TRY(dev->backend->kernels->add_n(dev, 1, &to, &from, 1));
    }
    return slices_copy(s, s->root, true);
}

static int slices_unpack(void *user, ek_dev *dev)
{
    const slices *s = user;
    if (dev != s->devs[s->root])
        return 0;
    ek_scope scope = ek_scope_begin();
    int rc = slices_unpack_in_scope(s);
    ek_scope_end(&scope);
    return rc;
}

/* ---- a stretch ---- */

/* Lists the moves by which device `to` gets slice `slice` from its place in device `from`. */
static int slices_move(const slices *s, int moves, int to, void *target, int from, int64_t place,
                       int slice)
{
    const ek_interval cut = slices_cut(s, slice);
    if (cut.begin == cut.end)
        return moves;
    s->moves[moves] =
        (ek_block_move){s->devs[to], s->devs[from], target, slices_address(s, from, place),
                        (size_t)(cut.end - cut.begin) * ek_dtype_size(s->dtype)};
    return moves + 1;
}

/* Adds on all devices. */
static int slices_add_by_moves(slices *s)
{
    int terms = 0, moves;
    for (int to = 0; to < s->devices; to++)
        for (int from = 0; from < s->devices; from++)
            if (from != to)
                terms = slices_move(s, terms, to, slices_address(s, to, slices_place(s, from)),
                                    from, slices_cut(s, to).begin, to);
    moves = terms;
    char *out = slices_out(s);
    for (int from = 0; from < s->devices; from++)
        if (from != s->root)
            moves = slices_move(s, moves, s->root,
                                out + (size_t)slices_cut(s, from).begin * ek_dtype_size(s->dtype),
                                from, slices_place(s, from), from);
    ek_exchange_step steps[5] = {{.work = slices_pack, .user = s},
                                 {.moves = s->moves, .count = terms},
                                 {.work = slices_sum, .user = s}};
    int count = 3;
    if (!s->whole)
        steps[count++] = (ek_exchange_step){.moves = s->moves + terms, .count = moves - terms};
    if (!s->direct)
        steps[count++] = (ek_exchange_step){.work = slices_unpack, .user = s};
    return ek_dev_exchange(s->devs, s->devices, steps, count);
}

static int slices_add_by_library(slices *s)
{
    void *data[EK_MAX_DEVICES];
    for (int d = 0; d < s->devices; d++)
        data[d] = s->rooms[d]->data;
    const ek_block_sum sum = {data, slices_out(s), s->root, s->elements, s->dtype};
    const ek_exchange_step steps[] = {{.work = slices_pack, .user = s},
                                      {.sum = &sum},
                                      {.work = slices_unpack, .user = s}};
    return ek_dev_exchange(s->devs, s->devices, steps, s->direct ? 2 : 3);
}

static int slices_add_stretch(slices *s)
{
    int rc = 0, made = 0;
    s->direct = slices_are_direct(s);
    s->whole = s->devices == 2 || (size_t)s->elements * ek_dtype_size(s->dtype) <= WHOLE_BYTES;
    const int64_t room = s->moved ? slices_place(s, s->devices) : s->elements;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    for (; made < s->devices && rc >= 0; made += rc >= 0) {
        const int64_t own = s->whole && made != s->root ? s->elements : room;
        s->rooms[made] = ek_storage_new(s->devs[made], (size_t)own * ek_dtype_size(s->dtype));
        rc = s->rooms[made] ? 0 : ek_error_pending();
    }
    ek_memory_set_category(before);
    if (rc >= 0)
        rc = s->moved ? slices_add_by_moves(s) : slices_add_by_library(s);
    while (made > 0)
        ek_object_release(s->rooms[--made]);
    return rc;
}

/* Returns the most elements of a stretch, for which devices need twice the memory; the root of two
 * devices needs three times the memory. A bucket of gradients is one stretch if the devices have
 * memory for it. With `least`, EK_COMM_BUFFER_BYTES are enough for the stretch. */
static int64_t slices_most(const slices *s, bool least)
{
    const size_t rooms = s->devices == 2 ? 3 : 2, little = EK_COMM_BUFFER_BYTES / rooms;
    size_t most = SIZE_MAX;
    for (int d = 0; d < s->devices; d++) {
        ek_memory_stats stats;
        size_t own = s->devs[d]->lane ? 2 * (size_t)ek_lane_bucket(s->devs[d]) : little;
        ek_ledger_read(s->devs[d], &stats);
        if (least || own < little ||
            (stats.capacity && stats.in_use + rooms * own > stats.capacity))
            own = little;
        most = own < most ? own : most;
    }
    return (int64_t)((most - (size_t)s->devices * EK_COMM_ALIGNMENT) / ek_dtype_size(s->dtype));
}

/* Takes at most `most` elements into the stretch, from element *begin of sum *i on. *i and *begin
 * become those of the next stretch. */
static void slices_fill(slices *s, const ek_addition *sums, int count, int64_t most, int *i,
                        int64_t *begin)
{
    s->count = 0;
    for (s->elements = 0; *i < count && s->elements < most;) {
        const int64_t left = ek_count(sums[*i].out) - *begin;
        const int64_t n = left < most - s->elements ? left : most - s->elements;
        if (n > 0)
            s->pieces[s->count++] = (piece){&sums[*i], *begin, n, s->elements};
        s->elements += ek_slab_pitch(s->dtype, n);
        *begin = n < left ? *begin + n : 0;
        *i += n == left;
    }
    if (s->count > 0)
        s->elements = s->pieces[s->count - 1].at + s->pieces[s->count - 1].count;
}

/* If a device lacks the memory for a stretch, the sums continue with the shortest stretches. */
int ek_slices_add(const ek_addition *sums, int count, ek_collective collective)
{
    slices s = {.devices = sums[0].count,
                .dtype = sums[0].out->dtype,
                .moved = collective == EK_COLLECTIVE_MOVES};
    for (int p = 0; p < s.devices; p++)
        s.devs[p] = ek_tensor_dev(sums[0].terms[p]);
    s.root = slices_device(&s, ek_tensor_dev(sums[0].out));
    s.unit = ek_slab_pitch(s.dtype, 1);
    s.pieces = ek_calloc((size_t)count, sizeof *s.pieces);
    s.moves = ek_calloc((size_t)s.devices * (size_t)s.devices, sizeof *s.moves);
    const int64_t least = slices_most(&s, true);
    const int pending = ek_error_status();
    int64_t most = slices_most(&s, false), begin = 0; /* in sum i */
    int rc = s.pieces && s.moves ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc >= 0;) {
        const int first = i;
        const int64_t first_begin = begin;
        slices_fill(&s, sums, count, most, &i, &begin);
        rc = s.count > 0 ? slices_add_stretch(&s) : 0;
        if (rc == EK_E_OUT_OF_MEMORY && pending == 0 && most > least) {
            ek_error_clear();
            rc = 0;
            most = least;
            i = first;
            begin = first_begin;
        }
    }
    free(s.moves);
    free(s.pieces);
    return rc;
}
