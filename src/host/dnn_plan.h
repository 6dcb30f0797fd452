/* dnn_plan.h: oneDNN primitives with what is needed to run them, cached. For dnn*.c only. */
#ifndef EK_HOST_DNN_PLAN_H
#define EK_HOST_DNN_PLAN_H

#include <oneapi/dnnl/dnnl.h>

#include "core/tensor.h"

/* What tells one plan from another: operation, dtype, threads, shapes, strides, parameters. The
 * first word is an ek_conv_kind, or EK_DNN_MATMUL. */
enum { EK_DNN_MATMUL = 100 };

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

    /* The primitive; NULL if oneDNN has nothing fast. Weights are brought into the primitive's
     * layout before it, or out of it after it if they are what is computed. */
    dnnl_primitive_t primitive;
    dnnl_primitive_t reorder;         /* NULL if the layouts agree */
    dnnl_memory_desc_t x, w, bias, y; /* the primitive's */
    dnnl_memory_desc_t w_user;        /* the tensor's */
    dnnl_memory_desc_t scratch, reorder_scratch;
} ek_dnn_plan;

enum { EK_DNN_TEXT = 700 };

/* How plans of one kind are made and run; `arguments` are those of a call. */
typedef struct ek_dnn_kind {
    /* Fills primitive, reorder and descriptors of an empty plan; with the attributes, primitives
     * take their scratch memory from the caller. */
    dnnl_status_t (*build)(ek_dnn_plan *plan, dnnl_engine_t engine,
                           dnnl_primitive_attr_t attributes, const void *arguments);
    /* The workspace has room for the primitive's weights, if there is a reorder, and then for the
     * scratch of primitive or reorder. */
    dnnl_status_t (*run)(const ek_dnn_plan *plan, const void *arguments, char *workspace,
                         dnnl_engine_t engine, dnnl_stream_t stream);
    /* What is computed, for sentences. */
    void (*describe)(const void *arguments, char what[EK_DNN_TEXT]);
} ek_dnn_kind;

/* Computes by the plan of a key, which is built with its first use. 1 when done, 0 if oneDNN has
 * nothing fast, negative on error. */
int ek_dnn_compute(ek_dev *dev, const ek_dnn_kind *kind, const ek_dnn_key *key,
                   const void *arguments);

/* Bytes of the primitive's weights in the workspace: 0 without a reorder. */
size_t ek_dnn_weight_bytes(const ek_dnn_plan *plan);

dnnl_data_type_t ek_dnn_type(ek_dtype dtype);

/* Whether a primitive is more than the slow reference code, which is there for everything. */
bool ek_dnn_is_fast(const_dnnl_primitive_desc_t primitive);

/* Tensors and scratch of one run, to be begun with the engine alone. */
enum { EK_DNN_MAX_ARGS = 6 };
typedef struct ek_dnn_args {
    dnnl_engine_t engine;
    int count;
    dnnl_status_t status; /* the first failure of ek_dnn_args_add: nothing is added after it */
    dnnl_exec_arg_t list[EK_DNN_MAX_ARGS];
} ek_dnn_args;

/* Nothing is added if `desc` describes nothing. */
void ek_dnn_args_add(ek_dnn_args *args, int name, const dnnl_memory_desc_t *desc, void *data);

/* Runs the primitive unless an argument failed; frees the arguments. */
dnnl_status_t ek_dnn_run(dnnl_primitive_t primitive, ek_dnn_args *args, dnnl_stream_t stream);

/* In a function that returns a status: returns that of `call` unless it is success. */
#define EK_DNN_TRY(call)                \
    do {                                \
        dnnl_status_t status_ = (call); \
        if (status_ != dnnl_success)    \
            return status_;             \
    } while (0)

/* Turns a status into a pending error, "<what>: oneDNN ..."; 0 for success. */
int ek_dnn_check(dnnl_status_t status, const char *what);

#endif
