/* Softmax and log-softmax along one dimension, and their gradients. */
#include "host/axis.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/formulas.h"

/* Most rows of a block; rows shorter than NARROW are worked on together. */
enum { ROWS = 512, NARROW = 32 };

#define EK_REAL float
#define EK_NAME(name) name##_f32
#include "host/softmax_real.h"
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
#include "host/softmax_real.h"
#undef EK_REAL
#undef EK_NAME

typedef struct softmax_job {
    ek_axis axis;
    ek_axis_operand out, a, b;
    bool logarithm;
} softmax_job;

/* Slots: x, y. */
static void softmax_part(void *context, void *const *slots, int64_t begin, int64_t end)
{
    const softmax_job *job = context;
    const ek_axis *axis = &job->axis;
    ek_cursor cursor;
    ek_cursor_init(&axis->walk, &cursor, begin);
    while (begin < end) {
        int64_t rows = ek_axis_rows(axis, &cursor, end - begin);
        const void *x = ek_axis_load(axis, &cursor, &job->a, rows, slots[0]);
        void *y = ek_axis_target(axis, &cursor, &job->out, rows, slots[1]);
        if (axis->type == EK_CLASS_F32)
            softmax_block_f32(rows, axis->size, y, x, job->logarithm);
        else
            softmax_block_f64(rows, axis->size, y, x, job->logarithm);
        ek_axis_store(axis, &cursor, &job->out, rows, y, slots[1]);
        ek_cursor_advance(&axis->walk, &cursor, rows);
        begin += rows;
    }
}

int ek_host_softmax(ek_dev *dev, ek_tensor *y, const ek_tensor *x, int dim, bool logarithm)
{
    if (ek_count(x) == 0)
        return 0;
    softmax_job job = {.logarithm = logarithm};
    EK_TRY(ek_axis_begin(&job.axis, dev, (const ek_tensor *[]){x, y}, (const bool[]){true, true}, 2,
                         dim));
    job.a = ek_axis_operand_of(&job.axis, 0, x, dim);
    job.out = ek_axis_operand_of(&job.axis, 1, y, dim);
    ek_axis_for(&job.axis, dev, softmax_part, &job);
    ek_axis_end(&job.axis, dev);
    return 0;
}

/* Slots: dx, dy, y. */
static void gradient_part(void *context, void *const *slots, int64_t begin, int64_t end)
{
    const softmax_job *job = context;
    const ek_axis *axis = &job->axis;
    ek_cursor cursor;
    ek_cursor_init(&axis->walk, &cursor, begin);
    while (begin < end) {
        int64_t rows = ek_axis_rows(axis, &cursor, end - begin);
        const void *dy = ek_axis_load(axis, &cursor, &job->a, rows, slots[1]);
        const void *y = ek_axis_load(axis, &cursor, &job->b, rows, slots[2]);
        void *dx = ek_axis_target(axis, &cursor, &job->out, rows, slots[0]);
        if (axis->type == EK_CLASS_F32)
            gradient_block_f32(rows, axis->size, dx, dy, y, job->logarithm);
        else
            gradient_block_f64(rows, axis->size, dx, dy, y, job->logarithm);
        ek_axis_store(axis, &cursor, &job->out, rows, dx, slots[0]);
        ek_cursor_advance(&axis->walk, &cursor, rows);
        begin += rows;
    }
}

int ek_host_softmax_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *y,
                             int dim, bool logarithm)
{
    if (ek_count(dx) == 0)
        return 0;
    softmax_job job = {.logarithm = logarithm};
    EK_TRY(ek_axis_begin(&job.axis, dev, (const ek_tensor *[]){dx, dy, y},
                         (const bool[]){true, true, true}, 3, dim));
    job.out = ek_axis_operand_of(&job.axis, 0, dx, dim);
    job.a = ek_axis_operand_of(&job.axis, 1, dy, dim);
    job.b = ek_axis_operand_of(&job.axis, 2, y, dim);
    ek_axis_for(&job.axis, dev, gradient_part, &job);
    ek_axis_end(&job.axis, dev);
    return 0;
}
