/* recurrent.h: a step of recurrent networks, for some columns of some rows. recurrent.c computes
 * it, for single steps and for those of recurrent_steps.c. */
#ifndef EK_HOST_RECURRENT_H
#define EK_HOST_RECURRENT_H

#include "host/host.h"

enum { EK_RECURRENT_GATES = 4, EK_RECURRENT_OPERANDS = 15 };

/* Computes n elements. p has the operands' contiguous runs, those of outputs first. Outputs may be
 * inputs. */
typedef void ek_recurrent_body(int64_t n, void *const *p);

typedef struct ek_recurrent_operand {
    char *data;    /* The first element of the first row; NULL: zeros. */
    int64_t width; /* Elements from one row to the next. */
} ek_recurrent_operand;

/* Some columns of some rows of a step. The caller sets the members before `outputs`, then adds
 * the operands. */
typedef struct ek_recurrent_job {
    ek_dtype dtype;
    int64_t size; /* Bytes of an element. */
    int64_t hidden, row, column, columns;
    int outputs, count;
    ek_recurrent_operand operand[EK_RECURRENT_OPERANDS];
    ek_recurrent_operand copy; /* Gets the first output, too, if it has data. */
    ek_recurrent_body *body;
} ek_recurrent_job;

/* Returns how many parts x and product have. */
static inline int ek_recurrent_parts(ek_recurrent_cell cell)
{
    return cell == EK_CELL_LSTM ? 4 : cell == EK_CELL_GRU ? 3 : 1;
}

/* Returns the address of step t of a tensor (L, N, W); steps use the tensor's rows in turn. Other
 * tensors have one step. */
static inline char *ek_recurrent_at(const ek_tensor *x, int64_t t)
{
    const int64_t step = x->ndim == 3 ? t % x->shape[0] * x->stride[0] : 0;
    return (char *)ek_tensor_address(x) + step * (int64_t)ek_dtype_size(x->dtype);
}

/* Returns the job's columns of part k of a tensor's rows at step t. A vector is one row
 * for all samples. The tensor may be NULL, which counts as zeros. */
ek_recurrent_operand ek_recurrent_job_part(const ek_recurrent_job *job, const ek_tensor *x,
                                           int64_t t, int k);

/* Add the operands of ek_host_recurrent_forward or ek_host_recurrent_gradient, of step t of
 * several. The states of step t are at `from` before it and at `to` after it. If `gates` is h, it
 * is the state after the step. */
void ek_recurrent_job_forward(ek_recurrent_job *job, ek_recurrent_cell cell, const ek_tensor *h,
                              const ek_tensor *c, const ek_tensor *gates, const ek_tensor *x,
                              const ek_tensor *product, const ek_tensor *before, int64_t t,
                              int64_t from, int64_t to);
void ek_recurrent_job_gradient(ek_recurrent_job *job, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                               const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                               const ek_tensor *c, int64_t t, int64_t from, int64_t to);

/* Computes rows [begin, end), counted from the first row of the job, which is `context`. */
void ek_recurrent_job_run(void *context, int64_t begin, int64_t end);

#endif
