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

/* Rows and columns of the picture that a result of height x width repeats. */
typedef struct gather {
    int64_t height, width;
    int64_t from;            /* the picture's width */
    int64_t *rows, *columns; /* negative: filled */
} gather;

/* The columns [first, end) of the result: copied or mirrored if they are neighbours in the picture,
 * else picked one by one. */
typedef struct gather_run {
    int64_t first, end;
    enum { GATHER_PICK, GATHER_COPY, GATHER_MIRROR } how;
} gather_run;

#define DEFINE_ELEMENTS(bits)                                                                  \
    static void pick_##bits(int64_t count, const int64_t *restrict places, const void *in,     \
                            const unsigned char *outside, void *out)                           \
    {                                                                                          \
        const uint##bits##_t *restrict x = in;                                                 \
        uint##bits##_t *restrict y = out, other;                                               \
        if (!outside) {                                                                        \
            for (int64_t i = 0; i < count; i++)                                                \
                y[i] = x[places[i]];                                                           \
            return;                                                                            \
        }                                                                                      \
        memcpy(&other, outside, sizeof other);                                                 \
        for (int64_t i = 0; i < count; i++)                                                    \
            y[i] = places[i] < 0 ? other : x[places[i]];                                       \
    }                                                                                          \
    static inline void mirror_row_##bits(int64_t count, const uint##bits##_t *restrict x,      \
                                         uint##bits##_t *restrict y)                           \
    {                                                                                          \
        for (int64_t i = 0; i < count; i++)                                                    \
            y[i] = x[count - 1 - i];                                                           \
    }                                                                                          \
    EK_MULTIVERSION                                                                            \
    static void mirror_##bits(const gather *self, const gather_run *run, const void *plane,    \
                              void *result)                                                    \
    {                                                                                          \
        const uint##bits##_t *x = (const uint##bits##_t *)plane + self->columns[run->end - 1]; \
        uint##bits##_t *y = (uint##bits##_t *)result + run->first;                             \
        for (int64_t row = 0; row < self->height; row++, y += self->width)                     \
            if (self->rows[row] >= 0)                                                          \
                mirror_row_##bits(run->end - run->first, x + self->rows[row] * self->from, y); \
    }
DEFINE_ELEMENTS(8)
DEFINE_ELEMENTS(16)
DEFINE_ELEMENTS(32)
DEFINE_ELEMENTS(64)
#undef DEFINE_ELEMENTS

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

/* Runs of fewer than GATHER_LEAST columns are picked. The places of small pictures lie on the
 * stack, because allocating memory takes as long as moving a row. */
enum { GATHER_RUNS = 4, GATHER_LEAST = 8, GATHER_ROOM = 512 };

/* Returns the longest run that begins at column `first`. */
static gather_run gather_next(const int64_t *columns, int64_t first, int64_t count)
{
    gather_run run = {first, first + 1, GATHER_PICK};
    int64_t step = run.end < count && columns[run.end] < columns[first] ? -1 : 1;
    while (columns[first] >= 0 && run.end < count && columns[run.end] >= 0 &&
           columns[run.end] == columns[run.end - 1] + step)
        run.end++;
    if (run.end - first >= GATHER_LEAST)
        run.how = step == 1 ? GATHER_COPY : GATHER_MIRROR;
    return run;
}

/* Splits the columns that are not filled into runs. If there are more than GATHER_RUNS, the last
 * run picks all further columns. Returns the number of runs. */
static int gather_split(const gather *self, gather_run runs[GATHER_RUNS])
{
    int n = 0;
    for (int64_t at = 0; at < self->width;) {
        gather_run run = gather_next(self->columns, at, self->width);
        bool is_filled = self->columns[at] < 0;
        at = run.end;
        if (is_filled)
            continue;
        if (n == GATHER_RUNS || (n > 0 && runs[n - 1].end == run.first && run.how == GATHER_PICK &&
                                 runs[n - 1].how == GATHER_PICK))
            runs[n - 1] = (gather_run){runs[n - 1].first, run.end, GATHER_PICK};
        else
            runs[n++] = run;
    }
    return n;
}

/* Writes a run of columns of one plane. */
static void gather_plane(const gather *self, const gather_run *run, size_t size, const char *plane,
                         const unsigned char *outside, char *out)
{
    const int64_t *columns = self->columns + run->first, *rows = self->rows;
    const int64_t count = run->end - run->first, height = self->height, from = self->from;
    const size_t nbytes = (size_t)count * size, pitch = (size_t)self->width * size;
    if (run->how == GATHER_MIRROR) {
        OF_SIZE(mirror, size)(self, run, plane, out);
        return;
    }
    out += (size_t)run->first * size;
    if (run->how == GATHER_COPY)
        plane += (size_t)columns[0] * size;
    for (int64_t y = 0; y < height; y++, out += pitch) {
        if (rows[y] < 0)
            continue;
        const char *row = plane + (size_t)(rows[y] * from) * size;
        if (run->how == GATHER_COPY)
            memcpy(out, row, nbytes);
        else
            ek_pick_run(count, columns, size, row, outside, out);
    }
}

int ek_picture_gather(const ek_array *in, ek_array *out, ek_places *find, const void *user,
                      double fill)
{
    const ek_picture from = ek_picture_of(in), to = ek_picture_of(out);
    gather self = {.height = to.height, .width = to.width, .from = from.width};
    unsigned char element[8];
    gather_run runs[GATHER_RUNS];
    int64_t signs = 0, room[GATHER_ROOM];
    const bool small = to.height + to.width <= GATHER_ROOM;
    self.rows = small ? room : ek_calloc((size_t)(to.height + to.width), sizeof *self.rows);
    if (!self.rows)
        return EK_E_NO_MEMORY;
    self.columns = self.rows + to.height;
    find(user, 0, to.height, self.rows);
    find(user, 1, to.width, self.columns);
    for (int64_t i = 0; i < to.height + to.width; i++)
        signs |= self.rows[i];
    ek_fill_element(in->dtype, fill, element);
    if (signs < 0)
        ek_fill_run(ek_shape_count(&out->shape), to.size, element, out->data);
    const int count = gather_split(&self, runs);
    const char *plane = in->data;
    char *result = out->data;
    for (int64_t p = 0; p < from.planes; p++) {
        for (int i = 0; i < count; i++)
            gather_plane(&self, &runs[i], to.size, plane, signs < 0 ? element : NULL, result);
        plane += (size_t)(from.height * from.width) * from.size;
        result += (size_t)(to.height * to.width) * to.size;
    }
    if (!small)
        free(self.rows);
    return 0;
}
