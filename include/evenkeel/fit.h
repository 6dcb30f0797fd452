/** @file
 * fit.h: finds out how a model trains on given devices with a given batch.
 *
 *     ek_fit_result fit;
 *     ek_fit(&fit, .module = net, .criterion = criterion, .optimizer = make_optimizer,
 *            .input = EK_VALUE(x), .target = EK_VALUE(y));
 *     ek_fit_print(&fit, stdout);
 *     ek_module *model = ek_fit_model(&fit, net);
 *     criterion = ek_fit_criterion(&fit, criterion);
 *     ek_optimizer *optimizer = make_optimizer(model, NULL);
 *     ... ek_train_step(..., .micro_batches = fit.micro_batches) ... */
#ifndef EVENKEEL_FIT_H
#define EVENKEEL_FIT_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/report.h"
#include "evenkeel/train.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_fit_options {
    int begin;            /**< no option, see base.h */
    ek_module *module;    /**< borrowed; on cpu, and such that ek_module_copy can copy it */
    ek_module *criterion; /**< borrowed; such that it can be copied; called as by ek_train_step */
    /** Makes the optimizer of a model, as the training will. NULL fails the call. */
    ek_optimizer *(*optimizer)(ek_module *model, void *user);
    void *user;
    ek_value input, target;      /**< a whole batch, on cpu, as ek_train_step takes it */
    int dim;                     /**< the dimension along which input and target are cut */
    ek_device_list device_ids;   /**< empty: all accelerators */
    double max_norm;             /**< as in ek_train_options */
    bool checkpoint EK_IS(true); /**< modules may be checkpointed (ek_module_checkpoint) */
    ek_shard_policy shard EK_IS(EK_SHARD_PARAMETERS); /**< the most that may be sharded */
    bool offload EK_IS(true); /**< the optimizer's state may lie on cpu (EK_OFFLOAD_OPTIMIZER) */
    bool autocast;            /**< autocast to bf16 is allowed, which changes numbers */
    /** The most micro-batches. 0: 64, but 1 if the model has batch normalisations, whose statistics
     * would be those of parts. Other modules with statistics of a batch are not noticed. */
    int micro_batches;
    double headroom EK_IS(0.05); /**< the share of each capacity that stays free: peaks vary */
    /** The ranks that train together; NULL: the world. All of them call ek_fit, with batches and
     * lists of devices of equal sizes, and all choose alike: devices of one index count as the
     * fullest and slowest of them. */
    ek_process_group *process_group;
    FILE *log; /**< gets a line per trial; NULL: none */
} ek_fit_options;
#define EK_DEFAULTS_ek_fit_options                                        \
    EK_DEFAULT(checkpoint, true), EK_DEFAULT(shard, EK_SHARD_PARAMETERS), \
        EK_DEFAULT(offload, true), EK_DEFAULT(headroom, 0.05)

/** What a larger batch would need, by estimate. */
typedef struct ek_fit_larger {
    int64_t batch;
    bool fits;
    double step_seconds;
    int micro_batches;
    ek_device device; /**< the fullest device */
    uint64_t peak;    /**< its peak */
    uint64_t missing; /**< bytes that it lacks; 0 if the batch fits */
} ek_fit_larger;

enum { EK_FIT_LARGER = 2, EK_FIT_PATHS = 4096 };
typedef struct ek_fit_result {
    /** The options of ek_data_parallel_model, without a module. Over ranks .shard and .offload are
     * those of ek_distributed_data_parallel. */
    ek_data_parallel_options wrapper;
    ek_process_group *process_group;
    int ranks;         /**< how many ranks train together; 1: this process alone */
    int micro_batches; /**< for ek_train_step; at least 1 */
    ek_dtype autocast; /**< EK_BF16: steps run within ek_autocast_begin(EK_BF16); else EK_F32 */
    /** The paths of the modules to checkpoint, with commas between them. */
    char checkpointed[EK_FIT_PATHS];
    int checkpointed_count;
    /** Measured in trial steps with the whole batch: peaks, and the median step. What the means
     * save is estimated. If a training without a means doesn't run at all, `saved` is what its
     * memory is known to exceed. */
    ek_expectation expected;
    ek_fit_larger larger[EK_FIT_LARGER]; /**< batches of 1.25 and 2 times the size */
} ek_fit_result;

EK_API int ek_fit_with(ek_fit_result *result, ek_fit_options options);
/** Chooses the fastest training that fits: how a batch is cut over devices, micro-batches,
 * checkpointed modules, sharding, offloading, autocast. Copies of the module take training steps on
 * the devices: small ones, from which memory and time of all combinations are estimated, then whole
 * ones of the combinations that promise most. So the chosen training has run. Combinations that a
 * wrapper or a checkpoint refuses are left out.
 *
 * Parameters, buffers, gradients, random generators and devices' peaks are as before, also after
 * errors. If nothing fits, EK_E_OUT_OF_MEMORY says which device lacks how many bytes in the
 * training that needs least. If not even one sample per device fits, the devices have no capacity
 * during the one small step that tells this number. Other errors are those of the training steps.
 */
#define ek_fit(result, ...) EK_CALL_AFTER(ek_fit_with, (result), ek_fit_options, __VA_ARGS__)

/** Checkpoints modules as the result says, and wraps the module, which the wrapper then owns:
 * ek_data_parallel_model, over ranks within ek_distributed_data_parallel. NULL with an error; the
 * module is freed. */
EK_API ek_module *ek_fit_model(const ek_fit_result *result, ek_module *module);
/** Wraps the criterion, which the wrapper then owns, for the model's outputs:
 * ek_data_parallel_criterion, over ranks within ek_distributed_criterion. NULL with an error; the
 * criterion is freed. */
EK_API ek_module *ek_fit_criterion(const ek_fit_result *result, ek_module *criterion);

/** Writes in sentences what was chosen, what is expected, what each means saves and costs, and what
 * larger batches would need. Returns 0 or EK_E_IO. */
EK_API int ek_fit_print(const ek_fit_result *result, FILE *stream);

EK_END_DECLARATIONS
#endif
