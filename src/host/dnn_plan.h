/* dnn_plan.h: oneDNN primitives with what is needed to run them, cached. For dnn*.c only. */
#ifndef EK_HOST_DNN_PLAN_H
#define EK_HOST_DNN_PLAN_H

#include <oneapi/dnnl/dnnl.h>

#include "core/tensor.h"

/* What tells one plan from another: operation, dtype, threads, shapes, strides, parameters. */
typedef struct ek_dnn_key {
    int count;
    int64_t words[64];
} ek_dnn_key;

void ek_dnn_key_add(ek_dnn_key *key, int64_t word);
void ek_dnn_key_add_array(ek_dnn_key *key, const int64_t *words, int count);

typedef struct ek_dnn_plan {
    struct ek_dnn_plan *next;
    ek_dnn_key key;
    uint64_t last_use;
    int users; /* calls that run it now */

    /* The primitive; NULL where oneDNN has nothing fast. Weights are brought into the primitive's
     * layout before it, or out of it after it where they are what is computed. */
    dnnl_primitive_t primitive;
    dnnl_primitive_t reorder;         /* NULL where the layouts agree */
    dnnl_memory_desc_t x, w, bias, y; /* the primitive's */
    dnnl_memory_desc_t w_user;        /* the tensor's */
    dnnl_memory_desc_t scratch, reorder_scratch;
} ek_dnn_plan;

/* Fills primitive, reorder and descriptors of an empty plan; 0 or negative with the sentence set.
 */
typedef int ek_dnn_plan_build(ek_dnn_plan *plan, dnnl_engine_t engine, const void *arguments);

/* The plan of a key, built on first use; ek_dnn_plan_release after use. NULL on error. */
ek_dnn_plan *ek_dnn_plan_acquire(const ek_dnn_key *key, ek_dnn_plan_build *build,
                                 const void *arguments);
void ek_dnn_plan_release(ek_dnn_plan *plan);

/* The engine of all plans; NULL on error. */
dnnl_engine_t ek_dnn_engine(void);

/* Turns a status into a pending error, "<what>: oneDNN ..."; 0 for success. */
int ek_dnn_check(dnnl_status_t status, const char *what);

#endif
