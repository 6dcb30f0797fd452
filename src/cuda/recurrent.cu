/* recurrent.cu: a step of an LSTM and its gradient. */
#include "cuda/launch.cuh"
#include "cuda/launches.h"
#include "kernels/recurrent.h"

/* The formulas of kernels/recurrent.h by overload. */
template <typename... R> EK_DEVICE void lstm_of(float i, R... rest)
{
    ek_lstm_f32(i, rest...);
}
template <typename... R> EK_DEVICE void lstm_of(double i, R... rest)
{
    ek_lstm_f64(i, rest...);
}
template <typename... R> EK_DEVICE void lstm_gradient_of(float dh, R... rest)
{
    ek_lstm_gradient_f32(dh, rest...);
}
template <typename... R> EK_DEVICE void lstm_gradient_of(double dh, R... rest)
{
    ek_lstm_gradient_f64(dh, rest...);
}

template <typename T> EK_KERNEL lstm_forward(ek_cuda_lstm_job job)
{
    typedef typename ek_compute<T>::type C;
    const T *x = (const T *)job.in[0], *product = (const T *)job.in[1];
    T *gates = (T *)job.out[2];
    EK_GRID_LOOP(at, job.count) {
        int64_t part = job.hidden, i = at / part * 4 * part + at % part;
        C of[4], c, h;
        lstm_of(ek_load(x + i) + ek_load(product + i),
                ek_load(x + i + part) + ek_load(product + i + part),
                ek_load(x + i + 2 * part) + ek_load(product + i + 2 * part),
                ek_load(x + i + 3 * part) + ek_load(product + i + 3 * part),
                ek_load((const T *)job.in[2] + at), &of[0], &of[1], &of[2], &of[3], &c, &h);
        ek_store((T *)job.out[0] + at, h);
        ek_store((T *)job.out[1] + at, c);
        ek_store(gates + i, of[0]);
        ek_store(gates + i + part, of[1]);
        ek_store(gates + i + 2 * part, of[2]);
        ek_store(gates + i + 3 * part, of[3]);
    }
}

template <typename T> EK_KERNEL lstm_gradient(ek_cuda_lstm_job job)
{
    typedef typename ek_compute<T>::type C;
    const T *dh = (const T *)job.in[0], *dc = (const T *)job.in[1], *gates = (const T *)job.in[2];
    T *dx = (T *)job.out[0];
    EK_GRID_LOOP(at, job.count) {
        int64_t part = job.hidden, i = at / part * 4 * part + at % part;
        C d[4], dbefore;
        lstm_gradient_of(dh != NULL ? ek_load(dh + at) : C(0), dc != NULL ? ek_load(dc + at) : C(0),
                         ek_load(gates + i), ek_load(gates + i + part),
                         ek_load(gates + i + 2 * part), ek_load(gates + i + 3 * part),
                         ek_load((const T *)job.in[3] + at), ek_load((const T *)job.in[4] + at),
                         &d[0], &d[1], &d[2], &d[3], &dbefore);
        ek_store(dx + i, d[0]);
        ek_store(dx + i + part, d[1]);
        ek_store(dx + i + 2 * part, d[2]);
        ek_store(dx + i + 3 * part, d[3]);
        ek_store((T *)job.out[1] + at, dbefore);
    }
}

int ek_cuda_launch_lstm(const ek_cuda_stream *stream, const ek_cuda_lstm_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(stream, ek_grid(stream, job->count), lstm_forward<T>, *job))
}

int ek_cuda_launch_lstm_gradient(const ek_cuda_stream *stream, const ek_cuda_lstm_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(stream, ek_grid(stream, job->count), lstm_gradient<T>, *job))
}
