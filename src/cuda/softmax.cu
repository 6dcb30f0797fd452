/* softmax.cu: softmax, cross entropy and their gradients: a team of threads per line. Softmax reads
 * a line twice, the second time from a cache if the line isn't very long.
 *
 * With logits x, target t and lse = log(sum(exp(x))), cross entropy is, as on the host,
 *
 *   loss = (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c])
 *
 * with the label smoothing s. The loss splits lse into the largest logit and the rest, which keeps
 * digits if logits are large. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"

/* The elements of type R that a thread loads before it computes with the first of them. If a store
 * lay between two loads, the second would wait for the first, because the compiler can't tell that
 * they don't overlap. */
template <typename R> struct line_batch {
    enum { COUNT = sizeof(R) == sizeof(double) ? 4 : 8 };
};

/* Loads N elements of a thread from element c of a line on, `lanes` apart. Elements beyond the line
 * are `otherwise`. */
template <typename T, typename R, int N>
EK_DEVICE void line_load(R (&to)[N], const T *x, int64_t stride, int64_t c, const ek_team &team,
                         int64_t size, R otherwise)
{
    EK_EACH(k, N) {
        const int64_t at = c + k * team.lanes;
        to[k] = at < size ? ek_load(x + at * stride) : otherwise;
    }
}

/* ---- a row: largest of a line and sum of exp(x - largest), in one pass over it ---- */

template <typename R> struct row_sum {
    R largest, sum;
};

template <typename R> EK_DEVICE row_sum<R> ek_exchange(row_sum<R> own, int step)
{
    row_sum<R> other;
    other.largest = ek_exchange(own.largest, step);
    other.sum = ek_exchange(own.sum, step);
    return other;
}

/* Returns the larger value. NaN wins. */
template <typename R> EK_DEVICE R row_larger(R a, R b)
{
    return b > a || b != b ? b : a;
}

/* Returns the number that is subtracted from exponents: `largest`; 0 if all elements so far are
 * -inf, because -inf - -inf is NaN. */
template <typename R> EK_DEVICE R row_shift_of(R largest)
{
    return largest == -(R)INFINITY ? (R)0 : largest;
}

template <typename R> struct row_join {
    __device__ __forceinline__ row_sum<R> operator()(row_sum<R> a, row_sum<R> b) const
    {
        row_sum<R> both;
        both.largest = row_larger(a.largest, b.largest);
        R shift = row_shift_of(both.largest);
        both.sum = a.sum * exp(a.largest - shift) + b.sum * exp(b.largest - shift);
        return both;
    }
};

/* Returns to all lanes of a line its largest element and its sum of exp(x - largest). The sum is
 * NaN if all elements are -inf, or if one is +inf or NaN. All threads of the block call it; `valid`
 * is false for threads without a line. */
template <typename T>
EK_DEVICE row_sum<typename ek_compute<T>::type> sum_row(const ek_team &team, bool valid, const T *x,
                                                        int64_t stride, int64_t size)
{
    typedef typename ek_compute<T>::type R;
    enum { N = line_batch<R>::COUNT };
    row_sum<R> line = {-(R)INFINITY, 0};
    for (int64_t c = team.lane; valid && c < size; c += N * team.lanes) {
        R v[N], largest = -(R)INFINITY, sum = 0;
        line_load(v, x, stride, c, team, size, -(R)INFINITY);
        EK_EACH(k, N)
            largest = row_larger(largest, v[k]);
        largest = row_larger(line.largest, largest);
        R shift = row_shift_of(largest);
        EK_EACH(k, N)
            sum += exp(v[k] - shift);
        line.sum = line.sum * exp(line.largest - shift) + sum;
        line.largest = largest;
    }
    line = ek_team_join(team, line, row_join<R>());
    if (line.largest == -(R)INFINITY)
        line.sum = (R)NAN;
    return line;
}

/* ---- softmax ---- */

template <typename T> EK_KERNEL softmax(ek_cuda_softmax_job job)
{
    typedef typename ek_compute<T>::type R;
    enum { N = line_batch<R>::COUNT };
    ek_team team = ek_team_of(job.team);
    EK_TEAM_LOOP(line, team, job.lines.count) {
        bool valid = line < job.lines.count;
        int64_t offset[2] = {0, 0};
        if (valid)
            ek_offsets(job.lines, line, offset);
        const T *x = (const T *)job.a + offset[1];
        row_sum<R> all = sum_row(team, valid, x, job.stride[1], job.size);
        if (!valid)
            continue;
        T *y = (T *)job.out + offset[0];
        R last = job.logarithm ? log(all.sum) : 1 / all.sum;
        for (int64_t c = team.lane; c < job.size; c += N * team.lanes) {
            R v[N];
            line_load(v, x, job.stride[1], c, team, job.size, R(0));
            EK_EACH(k, N) {
                const int64_t at = c + k * team.lanes;
                const R away = v[k] - all.largest;
                if (at < job.size)
                    ek_store(y + at * job.stride[0],
                             job.logarithm ? away - last : exp(away) * last);
            }
        }
    }
}

/* Returns a lane's part of the line's sum of dy, or of dy * y. The lane adds four terms before it
 * adds their sum to its own, which reduces rounding errors. */
template <typename T, typename R>
EK_DEVICE R softmax_gradient_sum(const ek_cuda_softmax_job &job, const ek_team &team, const T *dy,
                                 const T *y)
{
    R sum = 0;
    for (int64_t c = team.lane; c < job.size; c += 4 * team.lanes) {
        R four = 0;
        EK_EACH(k, 4) {
            int64_t at = c + k * team.lanes;
            if (at < job.size)
                four += ek_load(dy + at * job.stride[1]) *
                        (job.logarithm ? (R)1 : ek_load(y + at * job.stride[2]));
        }
        sum += four;
    }
    return sum;
}

template <typename T> EK_KERNEL softmax_gradient(ek_cuda_softmax_job job)
{
    typedef typename ek_compute<T>::type R;
    enum { N = line_batch<R>::COUNT };
    ek_team team = ek_team_of(job.team);
    EK_TEAM_LOOP(line, team, job.lines.count) {
        bool valid = line < job.lines.count;
        int64_t offset[3] = {0, 0, 0};
        if (valid)
            ek_offsets(job.lines, line, offset);
        const T *dy = (const T *)job.a + offset[1], *y = (const T *)job.b + offset[2];
        R sum = ek_team_sum(team, valid ? softmax_gradient_sum<T, R>(job, team, dy, y) : (R)0);
        if (!valid)
            continue;
        T *dx = (T *)job.out + offset[0];
        for (int64_t c = team.lane; c < job.size; c += N * team.lanes) {
            R slope[N], value[N];
            line_load(slope, dy, job.stride[1], c, team, job.size, R(0));
            line_load(value, y, job.stride[2], c, team, job.size, R(0));
            EK_EACH(k, N) {
                const int64_t at = c + k * team.lanes;
                const R result =
                    job.logarithm ? slope[k] - exp(value[k]) * sum : value[k] * (slope[k] - sum);
                if (at < job.size)
                    ek_store(dx + at * job.stride[0], result);
            }
        }
    }
}

int ek_cuda_launch_softmax(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(stream, ek_team_grid(stream, job->team, job->lines.count),
                                 softmax<T>, *job))
}

int ek_cuda_launch_softmax_gradient(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job){
    EK_FLOATING(job->dtype, T,
                return ek_launch(stream, ek_team_grid(stream, job->team, job->lines.count),
                                 softmax_gradient<T>, *job))}

/* ---- cross entropy ---- */

/* Returns true if the target counts. Records a fault if it is out of range. */
EK_DEVICE bool entropy_target_counts(int64_t target, int64_t ignore_index, int64_t classes,
                                     ek_cuda_fault *fault, const char *operation)
{
    if (target == ignore_index)
        return false;
    if (target >= 0 && target < classes)
        return true;
    ek_fault_raise(fault, EK_CUDA_FAULT_TARGET, target, classes, operation);
    return false;
}

template <typename R> EK_DEVICE R entropy_weight_of(const ek_cuda_entropy_job &job, int64_t c)
{
    if (job.weight.data == NULL)
        return (R)1;
    return ek_load_as<R>(job.weight.data, job.weight.dtype, c * job.weight_stride);
}

/* Returns a lane's part of sum_c w[c] (lse - x[c]). */
template <typename T, typename R>
static __device__ R entropy_smooth_loss(const ek_cuda_entropy_job &job, const ek_team &team,
                                        const T *x, row_sum<R> all, R log_sum)
{
    R sum = 0;
    for (int64_t c = team.lane; c < job.classes; c += team.lanes)
        sum +=
            entropy_weight_of<R>(job, c) * (all.largest - ek_load(x + c * job.stride_x) + log_sum);
    return sum;
}

template <typename T>
EK_KERNEL entropy_forward(ek_cuda_entropy_job job, ek_cuda_fault *fault, const char *operation)
{
    typedef typename ek_compute<T>::type R;
    ek_team team = ek_team_of(job.team);
    R smoothing = (R)job.params.label_smoothing;
    EK_TEAM_LOOP(line, team, job.lines.count) {
        bool valid = line < job.lines.count;
        int64_t offset[4] = {0, 0, 0, 0};
        if (valid)
            ek_offsets(job.lines, line, offset);
        const T *x = (const T *)job.x + offset[0];
        row_sum<R> all = sum_row(team, valid, x, job.stride_x, job.classes);
        R log_sum = log(all.sum), spread = 0;
        if (smoothing != 0)
            spread = ek_team_sum(team, valid ? entropy_smooth_loss<T, R>(job, team, x, all, log_sum)
                                             : (R)0);
        if (!valid || team.lane != 0)
            continue;
        int64_t t = job.target[offset[1]];
        R loss = 0;
        if (entropy_target_counts(t, job.params.ignore_index, job.classes, fault, operation)) {
            loss = entropy_weight_of<R>(job, t) *
                   (all.largest - ek_load(x + t * job.stride_x) + log_sum);
            if (smoothing != 0)
                loss = (1 - smoothing) * loss + smoothing / (R)job.classes * spread;
        }
        ek_store_as(job.loss.data, job.loss.dtype, offset[2], loss);
        ek_store_as(job.lse.data, job.lse.dtype, offset[3], all.largest + log_sum);
    }
}

/* Returns sum_c w[c], which each block computes separately. */
template <typename R> static __device__ R entropy_total_weight(const ek_cuda_entropy_job &job)
{
    if (job.weight.data == NULL)
        return (R)job.classes;
    R sum = 0;
    for (int64_t c = threadIdx.x; c < job.classes; c += blockDim.x)
        sum += entropy_weight_of<R>(job, c);
    return ek_team_sum(ek_team_of({EK_BLOCK, false}), sum);
}

template <typename T, bool smooths>
EK_KERNEL entropy_gradient(ek_cuda_entropy_job job, ek_cuda_fault *fault, const char *operation)
{
    typedef typename ek_compute<T>::type R;
    enum { N = smooths ? 2 : line_batch<R>::COUNT };
    ek_team team = ek_team_of(job.team);
    R smoothing = (R)job.params.label_smoothing, share = smoothing / (R)job.classes;
    R total = smooths ? entropy_total_weight<R>(job) : (R)0;
    EK_TEAM_LOOP(line, team, job.lines.count) {
        if (line >= job.lines.count)
            continue;
        int64_t offset[5];
        ek_offsets(job.lines, line, offset);
        const T *x = (const T *)job.x + offset[0];
        T *dx = (T *)job.dx + offset[4];
        int64_t t = job.target[offset[1]];
        if (!entropy_target_counts(t, job.params.ignore_index, job.classes, fault, operation)) {
            for (int64_t c = team.lane; c < job.classes; c += team.lanes)
                ek_store(dx + c * job.stride_dx, (R)0);
            continue;
        }
        R g = ek_load_as<R>(job.loss.data, job.loss.dtype, offset[2]);
        R lse = ek_load_as<R>(job.lse.data, job.lse.dtype, offset[3]);
        R own = (1 - smoothing) * entropy_weight_of<R>(job, t), scale = g * (own + share * total);
        for (int64_t c = team.lane; c < job.classes; c += N * team.lanes) {
            R slope[N];
            line_load(slope, x, job.stride_x, c, team, job.classes, R(0));
            EK_EACH(k, N) {
                const int64_t at = c + k * team.lanes;
                slope[k] = exp(slope[k] - lse) * scale - (at == t ? g * own : R(0));
                if (smooths && at < job.classes)
                    slope[k] -= g * share * entropy_weight_of<R>(job, at);
                if (at < job.classes)
                    ek_store(dx + at * job.stride_dx, slope[k]);
            }
        }
    }
}

int ek_cuda_launch_cross_entropy(const ek_cuda_stream *stream, const ek_cuda_entropy_job *job)
{
    EK_FLOATING(job->dtype, T,
                return ek_launch(stream, ek_team_grid(stream, job->team, job->lines.count),
                                 entropy_forward<T>, *job, stream->fault, "cross_entropy"))
}

int ek_cuda_launch_cross_entropy_gradient(const ek_cuda_stream *stream,
                                          const ek_cuda_entropy_job *job){
    EK_FLOATING(job->dtype, T,
                return ek_launch(stream, ek_team_grid(stream, job->team, job->lines.count),
                                 job->params.label_smoothing != 0 ? entropy_gradient<T, true>
                                                                  : entropy_gradient<T, false>,
                                 *job, stream->fault, "cross_entropy_gradient"))}

/* ---- the weight of targets ---- */

EK_KERNEL weigh_targets(ek_cuda_target_job job, ek_cuda_fault *fault, const char *operation)
{
    int64_t begin = (int64_t)blockIdx.x * EK_CUDA_TARGET_BLOCK, end = begin + EK_CUDA_TARGET_BLOCK;
    end = end < job.strides.count ? end : job.strides.count;
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        int64_t offset[1];
        ek_offsets(job.strides, i, offset);
        int64_t t = job.target[offset[0]];
        if (job.weight.data == NULL)
            sum += t != job.ignore_index ? 1 : 0;
        else if (entropy_target_counts(t, job.ignore_index, job.classes, fault, operation))
            sum += ek_load_as<double>(job.weight.data, job.weight.dtype, t * job.weight_stride);
    }
    sum = ek_team_sum(ek_team_of({EK_BLOCK, false}), sum);
    if (threadIdx.x != 0)
        return;
    if (job.partial != NULL)
        job.partial[blockIdx.x] = sum;
    else
        ek_store_as(job.out.data, job.out.dtype, 0, sum);
}

EK_KERNEL join_targets(ek_cuda_values out, const double *partial, int64_t count)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += partial[i];
    sum = ek_team_sum(ek_team_of({EK_BLOCK, false}), sum);
    if (threadIdx.x == 0)
        ek_store_as(out.data, out.dtype, 0, sum);
}

int ek_cuda_launch_target_weight(const ek_cuda_stream *stream, const ek_cuda_target_job *job)
{
    int rc = ek_launch(stream, (unsigned)job->blocks, weigh_targets, *job, stream->fault,
                       "target_weight");
    if (rc != 0 || job->partial == NULL)
        return rc;
    return ek_launch(stream, 1, join_targets, job->out, job->partial, job->blocks);
}
