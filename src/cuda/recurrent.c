/* recurrent.c: a step of an LSTM and its gradient, one launch each. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

static const void *lstm_data(const ek_tensor *tensor)
{
    return tensor ? ek_tensor_address(tensor) : NULL;
}

int ek_cuda_lstm_forward(ek_dev *dev, ek_tensor *h, ek_tensor *c, ek_tensor *gates,
                         const ek_tensor *x, const ek_tensor *product, const ek_tensor *before)
{
    if (ek_count(h) == 0)
        return 0;
    ek_cuda_lstm_job job = {.dtype = h->dtype,
                            .count = ek_count(h),
                            .hidden = h->shape[1],
                            .out = {ek_tensor_address(h), ek_tensor_address(c),
                                    ek_tensor_address(gates)},
                            .in = {lstm_data(x), lstm_data(product), lstm_data(before)}};
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    return ek_cuda_end(dev, &stream, "lstm", ek_cuda_launch_lstm(&stream, &job));
}

int ek_cuda_lstm_gradient(ek_dev *dev, ek_tensor *dx, ek_tensor *dbefore, const ek_tensor *dh,
                          const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                          const ek_tensor *c)
{
    if (ek_count(c) == 0)
        return 0;
    ek_cuda_lstm_job job = {.dtype = c->dtype,
                            .count = ek_count(c),
                            .hidden = c->shape[1],
                            .out = {ek_tensor_address(dx), ek_tensor_address(dbefore)},
                            .in = {lstm_data(dh), lstm_data(dc), lstm_data(gates),
                                   lstm_data(before), lstm_data(c)}};
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    return ek_cuda_end(dev, &stream, "lstm_gradient", ek_cuda_launch_lstm_gradient(&stream, &job));
}
