/* transform_gather.c: moves elements of any dtype: fill values, picked elements, and pictures whose
 * rows and columns repeat those of another. */
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "data/transform_operation.h"

/* ---- fill values ---- */

void ek_fill_element(ek_dtype dtype, double fill, unsigned char element[8])
{
    memset(element, 0, 8);
    switch (dtype) {
#define FILL(label, text, type, ...)             \
    case EK_##label: {                           \
        type value = EK_##label##_OF_REAL(fill); \
        memcpy(element, &value, sizeof value);   \
        break;                                   \
    }
        EK_DTYPE_ROWS(FILL)
#undef FILL
    }
}

void ek_fill_run(int64_t count, size_t size, const unsigned char *element, void *out)
{
    bool zero = true;
    for (size_t i = 0; i < size; i++)
        zero = zero && element[i] == 0;
    if (zero || size == 1) {
        memset(out, element[0], (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)out + (size_t)i * size, element, size);
}

/* ---- elements by their size ---- */

/* The last: elements in[0], in[-1] and so on. */
#define DEFINE_PICK(bits)                                                                  \
    static void pick_##bits(int64_t count, const int64_t *restrict places, const void *in, \
                            const unsigned char *outside, void *out)                       \
    {                                                                                      \
        const uint##bits##_t *restrict x = in;                                             \
        uint##bits##_t *restrict y = out, other;                                           \
        if (!outside) {                                                                    \
            for (int64_t i = 0; i < count; i++)                                            \
                y[i] = x[places[i]];                                                       \
            return;                                                                        \
        }                                                                                  \
        memcpy(&other, outside, sizeof other);                                             \
        for (int64_t i = 0; i < count; i++)                                                \
            y[i] = places[i] < 0 ? other : x[places[i]];                                   \
    }                                                                                      \
    EK_MULTIVERSION                                                                        \
    static void mirror_##bits(int64_t count, const void *in, void *out)                    \
    {                                                                                      \
        const uint##bits##_t *restrict x = in;                                             \
        uint##bits##_t *restrict y = out;                                                  \
        for (int64_t i = 0; i < count; i++)                                                \
            y[i] = x[-i];                                                                  \
    }
DEFINE_PICK(8)
DEFINE_PICK(16)
DEFINE_PICK(32)
DEFINE_PICK(64)
#undef DEFINE_PICK

#define OF_SIZE(function, size)    \
    ((size) == 1   ? function##_8  \
     : (size) == 2 ? function##_16 \
     : (size) == 4 ? function##_32 \
                   : function##_64)

void ek_pick_run(int64_t count, const int64_t *places, size_t size, const void *in,
                 const unsigned char *outside, void *out)
{
    OF_SIZE(pick, size)(count, places, in, outside, out);
}

/* ---- pictures ---- */

/* The columns [first, end) of the result that are neighbours in the picture, too; `step` is 1, or
 * -1 if they are mirrored. */
typedef struct gather_run {
    int64_t first, end, step;
} gather_run;

static gather_run gather_longest(const int64_t *columns, int64_t count)
{
    gather_run longest = {0, 0, 1};
    for (int64_t first = 0, end; first < count; first = end) {
        end = first + 1;
        int64_t step = end < count ? columns[end] - columns[first] : 1;
        bool is_run = columns[first] >= 0 && (step == 1 || step == -1);
        while (is_run && end < count && columns[end] >= 0 &&
               columns[end] == columns[end - 1] + step)
            end++;
        if (is_run && end - first > longest.end - longest.first)
            longest = (gather_run){first, end, step};
    }
    return longest;
}

static void gather_row(const int64_t *columns, int64_t count, const gather_run *run, size_t size,
                       const char *row, const unsigned char *outside, char *out)
{
    int64_t length = run->end - run->first;
    ek_pick_run(run->first, columns, size, row, outside, out);
    if (length > 0) {
        const char *from = row + (size_t)columns[run->first] * size;
        char *to = out + (size_t)run->first * size;
        if (run->step == 1)
            memcpy(to, from, (size_t)length * size);
        else
            OF_SIZE(mirror, size)(length, from, to);
    }
    ek_pick_run(count - run->end, columns + run->end, size, row, outside,
                out + (size_t)run->end * size);
}

int ek_picture_gather(const ek_array *in, ek_array *out, ek_place *place, const void *user,
                      double fill)
{
    ek_picture from = ek_picture_of(in), to = ek_picture_of(out);
    unsigned char element[8];
    bool inside = true;
    int64_t *rows = ek_calloc((size_t)(to.height + to.width) + 1, sizeof *rows);
    int64_t *columns = rows ? rows + to.height : NULL;
    if (!rows)
        return EK_E_NO_MEMORY;
    ek_fill_element(in->dtype, fill, element);
    for (int64_t y = 0; y < to.height; y++)
        rows[y] = place(user, 0, y);
    for (int64_t x = 0; x < to.width; x++) {
        columns[x] = place(user, 1, x);
        inside = inside && columns[x] >= 0;
    }
    const gather_run run = gather_longest(columns, to.width);
    for (int64_t p = 0; p < from.planes; p++)
        for (int64_t y = 0; y < to.height; y++) {
            char *row = ek_picture_row(out, p, y);
            if (rows[y] < 0)
                ek_fill_run(to.width, to.size, element, row);
            else
                gather_row(columns, to.width, &run, to.size, ek_picture_row(in, p, rows[y]),
                           inside ? NULL : element, row);
        }
    free(rows);
    return 0;
}
