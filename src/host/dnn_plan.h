/* dnn_plan.h: plans, which are cached oneDNN primitives with their reorders and descriptors. For
 * dnn_*.c only. */
#ifndef EK_HOST_DNN_PLAN_H
#define EK_HOST_DNN_PLAN_H

#include <oneapi/dnnl/dnnl.h>

#include "core/tensor.h"

/* A key identifies a plan by operation, dtype, shapes, strides and parameters. A plan computes on
 * one thread. The key's first word is an ek_conv_kind or EK_DNN_MATMUL. */
enum { EK_DNN_MATMUL = 100 };

typedef struct ek_dnn_key {
    int count;
    int64_t words[64];
} ek_dnn_key;

void ek_dnn_key_add(ek_dnn_key *key, const int64_t *words, int count);

typedef struct ek_dnn_plan {
    struct ek_dnn_plan *next;
    ek_dnn_key key;
    uint64_t last_use;
    int users; /* calls that run the plan now */

    /* NULL if oneDNN has no fast code. Weights are reordered to the primitive's layout before the
     * primitive runs; weight gradients are reordered from it afterwards. */
    dnnl_primitive_t primitive;
    dnnl_primitive_t reorder;         /* NULL if the layouts agree */
    dnnl_memory_desc_t x, w, bias, y; /* operands as the primitive has them */
    dnnl_memory_desc_t w_user;        /* weights as the tensor has them */
    dnnl_memory_desc_t scratch, reorder_scratch;
} ek_dnn_plan;

enum { EK_DNN_TEXT = 700 };

/* How plans of one kind are made and run. `arguments` comes from the caller of ek_dnn_compute. */
typedef struct ek_dnn_kind {
    /* Fills primitive, reorder and descriptors of an empty plan. Primitives made with `attributes`
     * take their scratch memory from the caller. */
    dnnl_status_t (*build)(ek_dnn_plan *plan, dnnl_engine_t engine,
                           dnnl_primitive_attr_t attributes, const void *arguments);
    /* Runs a plan. The workspace holds the reordered weights, if there is a reorder, and then the
     * scratch of primitive and reorder. */
    dnnl_status_t (*run)(const ek_dnn_plan *plan, const void *arguments, char *workspace,
                         dnnl_engine_t engine, dnnl_stream_t stream);
    /* Writes a description of the computation, for error sentences. */
    void (*describe)(const void *arguments, char what[EK_DNN_TEXT]);
} ek_dnn_kind;

/* A part of a computation, which has a plan. The caller sets key and arguments. */
typedef struct ek_dnn_part {
    ek_dnn_key key;
    const void *arguments;
    ek_dnn_plan *plan;
    size_t nbytes; /* the workspace's size */
    dnnl_status_t status;
} ek_dnn_part;

/* Computes parts concurrently by the plans of their keys, which are built on first use. Returns 1
 * when done, negative on error. Returns 0 if oneDNN has no fast code for a part, or if the
 * workspaces of several parts exceed the device's capacity; nothing is written then. */
int ek_dnn_compute(ek_dev *dev, const ek_dnn_kind *kind, ek_dnn_part *parts, int count);

/* Returns the bytes of the reordered weights in the workspace; 0 without a reorder. */
size_t ek_dnn_weight_bytes(const ek_dnn_plan *plan);

dnnl_data_type_t ek_dnn_type(ek_dtype dtype);

/* Returns false for oneDNN's slow reference code, which exists for every operation. */
bool ek_dnn_is_fast(const_dnnl_primitive_desc_t primitive);

/* The tensors and scratch of one run. The caller sets the engine, and all other members to 0. */
enum { EK_DNN_MAX_ARGS = 6 };
typedef struct ek_dnn_args {
    dnnl_engine_t engine;
    int count;
    dnnl_status_t status; /* the first failure of ek_dnn_args_add, which then adds nothing more */
    dnnl_exec_arg_t list[EK_DNN_MAX_ARGS];
} ek_dnn_args;

/* Adds an argument, unless `desc` is empty. */
void ek_dnn_args_add(ek_dnn_args *args, int name, const dnnl_memory_desc_t *desc, void *data);

/* Runs the primitive if no argument failed; frees the arguments. */
dnnl_status_t ek_dnn_run(dnnl_primitive_t primitive, ek_dnn_args *args, dnnl_stream_t stream);

/* If `call` fails, returns its status from the calling function. */
#define EK_DNN_TRY(call)                \
    do {                                \
        dnnl_status_t status_ = (call); \
        if (status_ != dnnl_success)    \
            return status_;             \
    } while (0)

/* Returns 0 for success. Otherwise sets the pending error "<what>: oneDNN ..." and returns its
 * status. */
int ek_dnn_check(dnnl_status_t status, const char *what);

#endif
