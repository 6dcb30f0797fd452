/* recurrent.cu: a step of recurrent networks and its gradient. */
#include "cuda/launch.cuh"
#include "cuda/launches.h"
#include "kernels/recurrent.h"

/* Defines a formula for f32 and f64 under one name. */
#define OVERLOADED(name, formula)                                     \
    template <typename... R> EK_DEVICE auto name(float x, R... rest)  \
    {                                                                 \
        return formula##_f32(x, rest...);                             \
    }                                                                 \
    template <typename... R> EK_DEVICE auto name(double x, R... rest) \
    {                                                                 \
        return formula##_f64(x, rest...);                             \
    }
OVERLOADED(lstm_of, ek_lstm)
OVERLOADED(lstm_gradient_of, ek_lstm_gradient)
OVERLOADED(gru_of, ek_gru)
OVERLOADED(gru_gradient_of, ek_gru_gradient)
OVERLOADED(rnn_gradient_of, ek_rnn_gradient)
OVERLOADED(tanh_of, ek_unary_TANH)
OVERLOADED(relu_of, ek_unary_RELU)

/* Returns the gradient of h, of which each part may be absent. */
template <typename T>
EK_DEVICE typename ek_compute<T>::type dh_at(const ek_cuda_recurrent_job &job, int64_t at)
{
    typedef typename ek_compute<T>::type C;
    const T *dh = (const T *)job.in[0], *more = (const T *)job.in[1];
    return (dh != NULL ? ek_load(dh + at) : C(0)) + (more != NULL ? ek_load(more + at) : C(0));
}

template <typename T> EK_KERNEL lstm_forward(ek_cuda_recurrent_job job)
{
    typedef typename ek_compute<T>::type C;
    const T *x = (const T *)job.in[0], *product = (const T *)job.in[1];
    T *gates = (T *)job.out[2];
    EK_GRID_LOOP(at, job.count) {
        int64_t part = job.hidden, row = at / part, i = row * 4 * part + at % part,
                in = row * job.x_row + at % part;
        C of[4], c, h;
        lstm_of(ek_load(x + in) + ek_load(product + i),
                ek_load(x + in + part) + ek_load(product + i + part),
                ek_load(x + in + 2 * part) + ek_load(product + i + 2 * part),
                ek_load(x + in + 3 * part) + ek_load(product + i + 3 * part),
                ek_load((const T *)job.in[2] + at), &of[0], &of[1], &of[2], &of[3], &c, &h);
        ek_store((T *)job.out[0] + at, h);
        ek_store((T *)job.out[1] + at, c);
        ek_store(gates + i, of[0]);
        ek_store(gates + i + part, of[1]);
        ek_store(gates + i + 2 * part, of[2]);
        ek_store(gates + i + 3 * part, of[3]);
    }
}

template <typename T> EK_KERNEL lstm_gradient(ek_cuda_recurrent_job job)
{
    typedef typename ek_compute<T>::type C;
    const T *dc = (const T *)job.in[2], *gates = (const T *)job.in[3];
    T *dx = (T *)job.out[0];
    EK_GRID_LOOP(at, job.count) {
        int64_t part = job.hidden, i = at / part * 4 * part + at % part;
        C d[4], dbefore;
        lstm_gradient_of(dh_at<T>(job, at), dc != NULL ? ek_load(dc + at) : C(0),
                         ek_load(gates + i), ek_load(gates + i + part),
                         ek_load(gates + i + 2 * part), ek_load(gates + i + 3 * part),
                         ek_load((const T *)job.in[4] + at), ek_load((const T *)job.in[5] + at),
                         &d[0], &d[1], &d[2], &d[3], &dbefore);
        ek_store(dx + i, d[0]);
        ek_store(dx + i + part, d[1]);
        ek_store(dx + i + 2 * part, d[2]);
        ek_store(dx + i + 3 * part, d[3]);
        ek_store((T *)job.out[1] + at, dbefore);
    }
}

template <typename T> EK_KERNEL gru_forward(ek_cuda_recurrent_job job)
{
    typedef typename ek_compute<T>::type C;
    const T *x = (const T *)job.in[0], *product = (const T *)job.in[1];
    T *gates = (T *)job.out[2];
    EK_GRID_LOOP(at, job.count) {
        int64_t part = job.hidden, row = at / part, i = row * 3 * part + at % part,
                in = row * job.x_row + at % part, kept = row * 4 * part + at % part;
        C r, z, n, h, product_n = ek_load(product + i + 2 * part);
        gru_of(ek_load(x + in) + ek_load(product + i),
               ek_load(x + in + part) + ek_load(product + i + part), ek_load(x + in + 2 * part),
               product_n, ek_load((const T *)job.in[2] + at), &r, &z, &n, &h);
        ek_store((T *)job.out[0] + at, h);
        ek_store(gates + kept, r);
        ek_store(gates + kept + part, z);
        ek_store(gates + kept + 2 * part, n);
        ek_store(gates + kept + 3 * part, product_n);
    }
}

template <typename T> EK_KERNEL gru_gradient(ek_cuda_recurrent_job job)
{
    typedef typename ek_compute<T>::type C;
    const T *gates = (const T *)job.in[3];
    T *dx = (T *)job.out[0];
    EK_GRID_LOOP(at, job.count) {
        int64_t part = job.hidden, i = at / part * 4 * part + at % part;
        C dr, dz, dn, dproduct_n, dbefore;
        gru_gradient_of(dh_at<T>(job, at), ek_load(gates + i), ek_load(gates + i + part),
                        ek_load(gates + i + 2 * part), ek_load(gates + i + 3 * part),
                        ek_load((const T *)job.in[4] + at), &dr, &dz, &dn, &dproduct_n, &dbefore);
        ek_store(dx + i, dr);
        ek_store(dx + i + part, dz);
        ek_store(dx + i + 2 * part, dn);
        ek_store(dx + i + 3 * part, dproduct_n);
        ek_store((T *)job.out[1] + at, dbefore);
    }
}

template <typename T> EK_KERNEL rnn_forward(ek_cuda_recurrent_job job)
{
    typedef typename ek_compute<T>::type C;
    EK_GRID_LOOP(at, job.count) {
        int64_t in = at / job.hidden * job.x_row + at % job.hidden;
        C sum = ek_load((const T *)job.in[0] + in) + ek_load((const T *)job.in[1] + at);
        ek_store((T *)job.out[0] + at,
                 job.cell == EK_CELL_RELU ? relu_of(sum, 0, 0) : tanh_of(sum, 0, 0));
    }
}

template <typename T> EK_KERNEL rnn_gradient(ek_cuda_recurrent_job job)
{
    EK_GRID_LOOP(at, job.count)
        ek_store((T *)job.out[0] + at,
                 rnn_gradient_of(dh_at<T>(job, at), ek_load((const T *)job.in[3] + at),
                                 job.cell == EK_CELL_RELU));
}

int ek_cuda_launch_recurrent(const ek_cuda_stream *stream, const ek_cuda_recurrent_job *job)
{
    EK_FLOATING(job->dtype, T,
                void (*kernel)(ek_cuda_recurrent_job) = job->cell == EK_CELL_LSTM  ? lstm_forward<T>
                                                        : job->cell == EK_CELL_GRU ? gru_forward<T>
                                                                                   : rnn_forward<T>;
                return ek_launch(stream, ek_grid(stream, job->count), kernel, *job))
}

int ek_cuda_launch_recurrent_gradient(const ek_cuda_stream *stream,
                                      const ek_cuda_recurrent_job *job)
{
    EK_FLOATING(job->dtype, T,
                void (*kernel)(ek_cuda_recurrent_job) = job->cell == EK_CELL_LSTM ? lstm_gradient<T>
                                                        : job->cell == EK_CELL_GRU
                                                            ? gru_gradient<T>
                                                            : rnn_gradient<T>;
                return ek_launch(stream, ek_grid(stream, job->count), kernel, *job))
}
