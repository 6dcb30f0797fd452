/* dnn_recurrent.c: recurrent networks by cuDNN.
 *
 *     ek_cuda_recurrent_network, ek_cuda_recurrent_network_gradient
 *         recurrent_open      describes the network
 *         recurrent_locate    finds each weight's place in a block of memory, cuDNN's weight space
 *         recurrent_issue     makes a call of cuDNN, with its workspace
 *
 * Each forward copies the weights to a block, which is kept for backward. The weights' gradients
 * are views of a block. For 2 layers of 512 the copies move 34 MB, which takes an H200 about 10 us.
 */
#include "cuda/dnn_plan.h"
#include "evenkeel/precision.h"

#ifdef EK_HAVE_CUDNN

enum { WEIGHT_HH = 1, BIAS_IH, BIAS_HH, WEIGHT_HR, WEIGHTS = EK_RECURRENT_WEIGHTS };

/* A network's descriptors, owned, which are NULL at first, and its sizes. */
typedef struct recurrent_dnn {
    const ek_cudnn_api *api;
    cudnnHandle_t handle; /* The device's; its lock guards the handle. */
    cudnnDropoutDescriptor_t dropout;
    cudnnRNNDescriptor_t network;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t h, c, weight, bias;
    size_t block, workspace, reserve; /* bytes */
} recurrent_dnn;

static void recurrent_show(ek_dev *dev, const ek_recurrent_call *call, const recurrent_dnn *dnn,
                           bool taken)
{
    static const char *const cells[] = {"tanh", "relu", "lstm", "gru"};
    char x[200];
    ek_cuda_show(dev, &ek_cuda_of(dev)->recurrent,
                 "recurrent: %s, %d layers, %d directions, x %s, hidden %lld: %s; workspace %zu, "
                 "kept %zu",
                 cells[call->cell], call->layers, call->directions, ek_tensor_text(call->x, x),
                 (long long)call->hidden, taken ? "cuDNN" : "own kernels", dnn->workspace,
                 dnn->reserve);
}

/* ---- descriptors ---- */

/* Returns true if cuDNN may compute the network. cuDNN's sums may differ from run to run, and cuDNN
 * doesn't promise the last state of a sample without steps. */
static bool recurrent_serves(const ek_recurrent_call *call)
{
    const int64_t *sizes = call->x->shape;
    bool serves = ek_dtype_wide(call->x->dtype) == EK_F32 && !ek_deterministic() && ek_cudnn() &&
                  (sizes[0] | sizes[1] | sizes[2]) <= INT32_MAX;
    for (int64_t i = 0; serves && i < sizes[1]; i++)
        serves = call->lengths[i] > 0;
    return serves;
}

static cudnnStatus_t recurrent_describe_steps(const recurrent_dnn *dnn,
                                              const ek_recurrent_call *call, int64_t columns,
                                              cudnnRNNDataDescriptor_t *data)
{
    float zero = 0; /* also the zero of 16-bit dtypes */
    const ek_tensor *x = call->x;
    EK_DNN_TRY(dnn->api->cudnnCreateRNNDataDescriptor(data));
    return dnn->api->cudnnSetRNNDataDescriptor(*data, ek_dnn_type(x->dtype),
                                               CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                               (int)x->shape[0], (int)x->shape[1], (int)columns,
                                               call->lengths, &zero);
}

static cudnnStatus_t recurrent_describe_state(const recurrent_dnn *dnn, const ek_tensor *state,
                                              cudnnTensorDescriptor_t *descriptor)
{
    const int sizes[] = {(int)state->shape[0], (int)state->shape[1], (int)state->shape[2]},
              strides[] = {sizes[1] * sizes[2], sizes[2], 1};
    EK_DNN_TRY(dnn->api->cudnnCreateTensorDescriptor(descriptor));
    return dnn->api->cudnnSetTensorNdDescriptor(*descriptor, ek_dnn_type(state->dtype), 3, sizes,
                                                strides);
}

static cudnnStatus_t recurrent_describe(recurrent_dnn *dnn, const ek_recurrent_call *call,
                                        cudnnForwardMode_t mode)
{
    static const cudnnRNNMode_t modes[] = {CUDNN_RNN_TANH, CUDNN_RNN_RELU, CUDNN_LSTM, CUDNN_GRU};
    const ek_cudnn_api *api = dnn->api;
    const ek_tensor *x = call->x, *h = call->h;
    const cudnnMathType_t math = x->dtype == EK_F16 ? CUDNN_TENSOR_OP_MATH
                                 : x->dtype == EK_BF16 || ek_tf32_convolution_allowed()
                                     ? CUDNN_DEFAULT_MATH
                                     : CUDNN_FMA_MATH;
    EK_DNN_TRY(api->cudnnCreateDropoutDescriptor(&dnn->dropout));
    EK_DNN_TRY(api->cudnnSetDropoutDescriptor(dnn->dropout, dnn->handle, 0, NULL, 0, 0));
    EK_DNN_TRY(api->cudnnCreateRNNDescriptor(&dnn->network));
    EK_DNN_TRY(api->cudnnSetRNNDescriptor_v8(
        dnn->network, CUDNN_RNN_ALGO_STANDARD, modes[call->cell],
        call->weights[BIAS_IH] ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
        call->directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
        ek_dnn_type(x->dtype), CUDNN_DATA_FLOAT, math, (int)x->shape[2], (int)call->hidden,
        (int)h->shape[2], call->layers, dnn->dropout, CUDNN_RNN_PADDED_IO_ENABLED));
    EK_DNN_TRY(recurrent_describe_steps(dnn, call, x->shape[2], &dnn->x));
    EK_DNN_TRY(recurrent_describe_steps(dnn, call, call->directions * h->shape[2], &dnn->y));
    EK_DNN_TRY(recurrent_describe_state(dnn, h, &dnn->h));
    if (call->c)
        EK_DNN_TRY(recurrent_describe_state(dnn, call->c, &dnn->c));
    EK_DNN_TRY(api->cudnnCreateTensorDescriptor(&dnn->weight));
    EK_DNN_TRY(api->cudnnCreateTensorDescriptor(&dnn->bias));
    EK_DNN_TRY(api->cudnnGetRNNTempSpaceSizes(dnn->handle, dnn->network, mode, dnn->x,
                                              &dnn->workspace, &dnn->reserve));
    return api->cudnnGetRNNWeightSpaceSize(dnn->handle, dnn->network, &dnn->block);
}

/* Returns 1; 0 if cuDNN can't compute the network. recurrent_close follows in any case. */
static int recurrent_open(ek_dev *dev, recurrent_dnn *dnn, const ek_recurrent_call *call,
                          bool keeps)
{
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    pthread_mutex_lock(&ek_cuda_of(dev)->lock);
    int rc = ek_cuda_dnn_handle(dev, &dnn->handle);
    dnn->api = ek_cudnn();
    if (rc >= 0 && dnn->handle)
        rc = recurrent_describe(dnn, call,
                                keeps ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE) ==
             CUDNN_STATUS_SUCCESS;
    (void)cudaGetLastError(); /* the next launch would return the error of a refused network */
    pthread_mutex_unlock(&ek_cuda_of(dev)->lock);
    const int ended = ek_cuda_end(dev, &stream, "recurrent network", rc < 0 ? rc : 0);
    return ended < 0 ? ended : rc;
}

static void recurrent_close(const recurrent_dnn *dnn)
{
    const ek_cudnn_api *api = dnn->api;
    if (!api)
        return;
    (void)api->cudnnDestroyTensorDescriptor(dnn->h);
    (void)api->cudnnDestroyTensorDescriptor(dnn->c);
    (void)api->cudnnDestroyTensorDescriptor(dnn->weight);
    (void)api->cudnnDestroyTensorDescriptor(dnn->bias);
    (void)api->cudnnDestroyRNNDataDescriptor(dnn->x);
    (void)api->cudnnDestroyRNNDataDescriptor(dnn->y);
    (void)api->cudnnDestroyRNNDescriptor(dnn->network);
    (void)api->cudnnDestroyDropoutDescriptor(dnn->dropout);
}

/* ---- weights ---- */

/* Makes a tensor in which `nbytes` begin at a multiple of 256, where recurrent_aligned points. */
static ek_tensor *recurrent_block(ek_dev *dev, size_t nbytes, ek_dtype dtype)
{
    const size_t padded = ek_cuda_padded(nbytes) / ek_dtype_size(dtype);
    return ek_tensor_new(dev, dtype, &EK_SHAPE((int64_t)padded), EK_CONTIGUOUS);
}

static void *recurrent_at(const ek_tensor *x)
{
    return x ? ek_tensor_address(x) : NULL;
}

static void *recurrent_aligned(const ek_tensor *block)
{
    return ek_cuda_aligned(recurrent_at(block));
}

/* Returns weight `at` of a block as a tensor. A weight's gates are linear layers of cuDNN, which
 * must lie side by side; if they don't, returns NULL without an error. */
static ek_tensor *recurrent_locate(ek_dev *dev, const recurrent_dnn *dnn,
                                   const ek_recurrent_call *call, int at, const ek_tensor *block)
{
    const ek_shape shape = ek_tensor_shape(call->weights[at]);
    const int which = at % WEIGHTS, gates = (int)(call->weights[0]->shape[0] / call->hidden),
              parts = which == WEIGHT_HR ? 1 : gates;
    const bool bias = which == BIAS_IH || which == BIAS_HH;
    const int64_t nbytes = ek_shape_count(&shape) * (int64_t)ek_dtype_size(block->dtype);
    int layer = which == WEIGHT_HR ? 2 * gates : which == WEIGHT_HH || which == BIAS_HH ? gates : 0;
    char *start = recurrent_aligned(block), *first = NULL;
    void *found[2]; /* the linear layer's matrix and its bias */
    int64_t strides[EK_MAX_DIMS];
    for (int i = 0; i < parts; i++, layer++) {
        pthread_mutex_lock(&ek_cuda_of(dev)->lock);
        cudnnStatus_t status =
            dnn->api->cudnnGetRNNWeightParams(dnn->handle, dnn->network, at / WEIGHTS, dnn->block,
                                              start, layer, dnn->weight, &found[0], dnn->bias,
                                              &found[1]);
        pthread_mutex_unlock(&ek_cuda_of(dev)->lock);
        if (status != CUDNN_STATUS_SUCCESS || !found[bias])
            return NULL;
        first = i == 0 ? found[bias] : first;
        if (found[bias] != first + i * (nbytes / parts))
            return NULL;
    }
    ek_strides_of(&shape, EK_CONTIGUOUS, strides);
    const int64_t before = first - (char *)ek_tensor_address(block);
    return ek_tensor_member(block->storage, block->dtype, &shape, strides,
                            block->offset + before / (int64_t)ek_dtype_size(block->dtype));
}

/* ---- calls ---- */

static cudnnStatus_t recurrent_forward(const recurrent_dnn *dnn, const ek_recurrent_call *call,
                                       void *workspace)
{
    const ek_tensor *kept = call->reserve;
    return dnn->api->cudnnRNNForward(dnn->handle, dnn->network,
                                     kept ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
                                     NULL, dnn->x, recurrent_at(call->x), dnn->y,
                                     recurrent_at(call->y), dnn->h, recurrent_at(call->h),
                                     recurrent_at(call->h_n), dnn->c, recurrent_at(call->c),
                                     recurrent_at(call->c_n), dnn->block,
                                     recurrent_aligned(call->packed), dnn->workspace, workspace,
                                     kept ? dnn->reserve : 0, recurrent_aligned(kept));
}

static cudnnStatus_t recurrent_backward(const recurrent_dnn *dnn, const ek_recurrent_call *call,
                                        const ek_recurrent_back *back, const ek_tensor *block,
                                        void *workspace)
{
    void *x = recurrent_at(call->x), *y = recurrent_at(call->y), *h = recurrent_at(call->h),
         *reserve = recurrent_aligned(call->reserve);
    EK_DNN_TRY(dnn->api->cudnnRNNBackwardData_v8(
        dnn->handle, dnn->network, NULL, dnn->y, y, recurrent_at(back->dy), dnn->x,
        recurrent_at(back->dx), dnn->h, h, recurrent_at(back->dh_n), recurrent_at(back->dh), dnn->c,
        recurrent_at(call->c), recurrent_at(back->dc_n), recurrent_at(back->dc), dnn->block,
        recurrent_aligned(call->packed), dnn->workspace, workspace, dnn->reserve, reserve));
    return dnn->api->cudnnRNNBackwardWeights_v8(dnn->handle, dnn->network, CUDNN_WGRAD_MODE_ADD,
                                                NULL, dnn->x, x, dnn->h, h, dnn->y, y, dnn->block,
                                                recurrent_aligned(block), dnn->workspace, workspace,
                                                dnn->reserve, reserve);
}

/* Issues the forward, or with `back` the backward, which adds the weights' gradients to `block`.
 * Returns 1; 0 if cuDNN doesn't support the call or memory is short. */
static int recurrent_issue(ek_dev *dev, const recurrent_dnn *dnn, const ek_recurrent_call *call,
                           const ek_recurrent_back *back, const ek_tensor *block)
{
    const size_t nbytes = ek_cuda_padded(dnn->workspace);
    const char *name = back ? "recurrent network's gradient" : "recurrent network";
    ek_cuda_stream stream;
    void *memory;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int rc = ek_cuda_try_scratch(dev, nbytes, &memory);
    if (rc > 0) {
        void *workspace = ek_cuda_aligned(memory);
        pthread_mutex_lock(&ek_cuda_of(dev)->lock);
        cudnnStatus_t status = back ? recurrent_backward(dnn, call, back, block, workspace)
                                    : recurrent_forward(dnn, call, workspace);
        pthread_mutex_unlock(&ek_cuda_of(dev)->lock);
        if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED)
            rc = 0;
        else if (status != CUDNN_STATUS_SUCCESS)
            rc = ek_cuda_dnn_failed(dev, name, "", status);
        if (memory)
            ek_cuda_scratch_free(dev, memory, nbytes);
    }
    const int ended = ek_cuda_end(dev, &stream, name, rc < 0 ? rc : 0);
    return ended < 0 ? ended : rc;
}

/* Returns 1 if there is memory for the network, 0 if memory is short, negative on error. */
static int recurrent_fits(ek_dev *dev, const recurrent_dnn *dnn, bool keeps)
{
    const size_t nbytes = ek_cuda_padded(dnn->block) + ek_cuda_padded(dnn->workspace) +
                          (keeps ? ek_cuda_padded(dnn->reserve) : 0);
    void *memory;
    const int rc = ek_cuda_try_scratch(dev, nbytes, &memory);
    if (rc > 0)
        ek_cuda_scratch_free(dev, memory, nbytes);
    return rc;
}

int ek_cuda_recurrent_network(ek_dev *dev, ek_recurrent_call *call, bool keeps)
{
    recurrent_dnn dnn = {.api = NULL};
    int rc = recurrent_serves(call) ? recurrent_open(dev, &dnn, call, keeps) : 0;
    if (rc > 0)
        rc = recurrent_fits(dev, &dnn, keeps);
    if (rc > 0 && (!(call->packed = recurrent_block(dev, dnn.block, call->x->dtype)) ||
                   (keeps && !(call->reserve = recurrent_block(dev, dnn.reserve, EK_U8)))))
        rc = ek_error_pending();
    for (int i = 0; rc > 0 && i < call->layers * call->directions * WEIGHTS; i++) {
        if (!call->weights[i])
            continue;
        ek_tensor *part = recurrent_locate(dev, &dnn, call, i, call->packed);
        rc = part ? ek_cuda_copy(dev, part, call->weights[i]) : ek_error_status();
        rc = part && rc >= 0 ? 1 : rc;
    }
    if (rc > 0)
        rc = recurrent_issue(dev, &dnn, call, NULL, NULL);
    if (rc >= 0)
        recurrent_show(dev, call, &dnn, rc > 0);
    recurrent_close(&dnn);
    return rc;
}

int ek_cuda_recurrent_network_gradient(ek_dev *dev, const ek_recurrent_call *call,
                                       const ek_recurrent_back *back)
{
    recurrent_dnn dnn = {.api = NULL};
    int rc = recurrent_open(dev, &dnn, call, true);
    /* If TF32 was switched since the forward, cuDNN may want another reserve. */
    if (rc > 0 && ek_count(call->reserve) != (int64_t)ek_cuda_padded(dnn.reserve))
        rc = 0;
    ek_tensor *block = rc > 0 ? recurrent_block(dev, dnn.block, call->x->dtype) : NULL;
    if (rc > 0 && (!block || ek_cuda_fill(dev, block, 0) < 0))
        rc = ek_error_pending();
    for (int i = 0; rc > 0 && i < call->layers * call->directions * WEIGHTS; i++)
        if (call->weights[i] && !(back->dweights[i] = recurrent_locate(dev, &dnn, call, i, block)))
            rc = ek_error_status();
    if (rc > 0)
        rc = recurrent_issue(dev, &dnn, call, back, block);
    recurrent_close(&dnn);
    return rc;
}

#else

int ek_cuda_recurrent_network(ek_dev *dev, ek_recurrent_call *call, bool keeps)
{
    (void)dev, (void)call, (void)keeps;
    return 0;
}

int ek_cuda_recurrent_network_gradient(ek_dev *dev, const ek_recurrent_call *call,
                                       const ek_recurrent_back *back)
{
    (void)dev, (void)call, (void)back;
    return 0;
}

#endif
