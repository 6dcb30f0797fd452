/* reduce.cu: sums and extremes, and positions of extremes. Each thread issues four loads at once,
 * and joins their values before it adds them to its accumulator, which reduces rounding errors. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"

/* ---- operations ---- */

/* Returns the largest value of the type, or the smallest. */
template <typename A> EK_DEVICE A reduce_limit_of(bool largest)
{
    if constexpr (A(0.5) != A(0))
        return largest ? (A)INFINITY : -(A)INFINITY;
    else
        return largest ? INT64_MAX : INT64_MIN;
}

/* A reduction. SUM is a constant, because only sums use packs. Other operations are chosen at run
 * time, which costs less than the loads and halves the number of kernels. */
template <typename A, bool SUM> struct operation {
    bool extreme;
    bool flip; /* true: a sum of squares in place of a sum, a minimum in place of a maximum */
    bool product;

    __device__ __forceinline__ explicit operation(ek_reduce_kind kind)
        : extreme(!SUM && (kind == EK_REDUCE_MAX || kind == EK_REDUCE_MIN)),
          flip(kind == EK_REDUCE_SUM_SQUARES || kind == EK_REDUCE_MIN),
          product(!SUM && kind == EK_REDUCE_PRODUCT)
    {
    }
    __device__ __forceinline__ A start() const
    {
        return extreme ? reduce_limit_of<A>(flip) : A(product ? 1 : 0);
    }
    __device__ __forceinline__ A value(A v) const
    {
        return !extreme && flip ? ek_times(v, v) : v;
    }
    /* Joins two accumulators. NaN wins. */
    __device__ __forceinline__ A operator()(A a, A b) const
    {
        if (product)
            return ek_times(a, b);
        if (!extreme)
            return ek_plus(a, b);
        return (flip ? b < a : b > a) || b != b ? b : a;
    }
    __device__ __forceinline__ A four(A a, A b, A c, A d) const
    {
        return (*this)((*this)(value(a), value(b)), (*this)(value(c), value(d)));
    }
};

/* ---- the innermost dimension is reduced: a team per output ---- */

template <typename T> struct run_of {
    const T *from;
    int64_t stride;
    __device__ __forceinline__ const T *at(int64_t i) const
    {
        return from + i * stride;
    }
};

template <typename T> struct places_of {
    const T *from;
    int64_t begin;
    const ek_cuda_strides *reduced;
    __device__ __forceinline__ const T *at(int64_t i) const
    {
        int64_t offset[1];
        ek_offsets(*reduced, begin + i, offset);
        return from + offset[0];
    }
};

template <typename T, typename A, typename O, typename S>
EK_DEVICE A reduce_take_each(const O &op, const ek_team &team, A total, const S &source, int64_t n)
{
    int64_t i = team.lane, step = team.lanes;
    for (; i + 3 * step < n; i += 4 * step) {
        A a = ek_load(source.at(i)), b = ek_load(source.at(i + step));
        A c = ek_load(source.at(i + 2 * step)), d = ek_load(source.at(i + 3 * step));
        total = op(total, op.four(a, b, c, d));
    }
    for (; i < n; i += step)
        total = op(total, op.value(ek_load(source.at(i))));
    return total;
}

/* Reduces n contiguous elements. Elements before the first multiple of 16 bytes, and after the
 * last, are read one by one. */
template <typename T, int N, typename A, typename O>
static __device__ A reduce_take_run(const O &op, const ek_team &team, A total, const T *from,
                                    int64_t n)
{
    int64_t head = (16 - (int64_t)((uintptr_t)from % 16)) % 16 / (int64_t)sizeof(T);
    head = head < n ? head : n;
    int64_t packs = (n - head) / N, step = team.lanes, tail = n - head - packs * N;
    for (int64_t i = team.lane; i < head + tail; i += step)
        total = op(total, op.value(ek_load(from + (i < head ? i : i + packs * N))));
    from += head;
    A part[N];
    EK_EACH(j, N)
        part[j] = op.start();
    int64_t i = team.lane;
    for (; i + 3 * step < packs; i += 4 * step) {
        A a[N], b[N], c[N], d[N];
        ek_load_elements<T>(a, from + i * N);
        ek_load_elements<T>(b, from + (i + step) * N);
        ek_load_elements<T>(c, from + (i + 2 * step) * N);
        ek_load_elements<T>(d, from + (i + 3 * step) * N);
        EK_EACH(j, N)
            part[j] = op(part[j], op.four(a[j], b[j], c[j], d[j]));
    }
    for (; i < packs; i += step) {
        A a[N];
        ek_load_elements<T>(a, from + i * N);
        EK_EACH(j, N)
            part[j] = op(part[j], op.value(a[j]));
    }
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2)
        EK_EACH(j, width)
            part[j] = op(part[j], part[j + width]);
    return op(total, part[0]);
}

template <typename T, int N, typename A, typename O>
EK_DEVICE A reduce_take_chunk(const ek_cuda_reduction &r, const O &op, const ek_team &team,
                              const T *x, int64_t begin, int64_t end)
{
    A total = op.start();
    if (!r.runs) {
        places_of<T> source = {x, begin, &r.reduced};
        return reduce_take_each<T>(op, team, total, source, end - begin);
    }
    int last = r.reduced.ndim - 1;
    int64_t size = r.reduced.shape[last];
    while (begin < end) {
        int64_t offset[1], rest = size - (last == 0 ? begin : begin % size);
        rest = rest < end - begin ? rest : end - begin;
        ek_offsets(r.reduced, begin, offset);
        if (N > 1) {
            total = reduce_take_run<T, N>(op, team, total, x + offset[0], rest);
        } else {
            run_of<T> source = {x + offset[0], r.reduced.stride[0][last]};
            total = reduce_take_each<T>(op, team, total, source, rest);
        }
        begin += rest;
    }
    return total;
}

template <typename T, int N> EK_KERNEL reduce_rows(ek_cuda_reduction r)
{
    typedef typename ek_compute<T>::type A;
    const operation<A, (N > 1)> op(r.kind);
    ek_team team = ek_team_of(r.team);
    int64_t tasks = r.kept.count * r.chunks;
    EK_TEAM_LOOP(task, team, tasks) {
        A total = op.start();
        int64_t chunk = 0, output = task, offset[2] = {0, 0};
        if (task < tasks) {
            if (r.chunks > 1) {
                chunk = task / r.kept.count;
                output = task - chunk * r.kept.count;
            }
            int64_t begin = chunk * r.chunk, end = begin + r.chunk;
            end = end < r.reduced.count ? end : r.reduced.count;
            ek_offsets(r.kept, output, offset);
            total = reduce_take_chunk<T, N, A>(r, op, team, (const T *)r.x + offset[0], begin, end);
        }
        total = ek_team_join(team, total, op);
        if (task < tasks && team.lane == 0)
            ek_store_as(r.out, r.out_dtype, r.chunks > 1 ? task : offset[1], total);
    }
}

/* ---- the innermost dimension is kept: threads lie along it, and several rows side by side ---- */

template <typename T, int N, typename A, typename O>
EK_DEVICE void reduce_take_rows(const ek_cuda_reduction &r, const O &op, const T *x, int64_t row,
                                int64_t end, int step, A (&total)[N])
{
    int64_t offset[1];
    for (; row + 3 * step < end; row += 4 * step) {
        A v[4][N];
        EK_EACH(k, 4) {
            ek_offsets(r.reduced, row + k * step, offset);
            ek_load_elements<T>(v[k], x + offset[0]);
        }
        EK_EACH(j, N)
            total[j] = op(total[j], op.four(v[0][j], v[1][j], v[2][j], v[3][j]));
    }
    for (; row < end; row += step) {
        A v[N];
        ek_offsets(r.reduced, row, offset);
        ek_load_elements<T>(v, x + offset[0]);
        EK_EACH(j, N)
            total[j] = op(total[j], op.value(v[j]));
    }
}

/* Joins the rows of a block into its first row. */
template <int N, typename A, typename O>
EK_DEVICE void reduce_join_rows(const O &op, int width, A (&total)[N])
{
    __shared__ A parts[N][EK_BLOCK];
    int thread = (int)threadIdx.x;
    __syncthreads(); /* other threads may still read `parts` of the task before */
    EK_EACH(j, N)
        parts[j][thread] = total[j];
    for (int half = EK_BLOCK / 2; half >= width; half /= 2) {
        __syncthreads();
        if (thread < half) {
            EK_EACH(j, N)
                parts[j][thread] = op(parts[j][thread], parts[j][thread + half]);
        }
    }
    EK_EACH(j, N)
        total[j] = parts[j][thread];
}

template <typename T, int N> EK_KERNEL reduce_columns(ek_cuda_reduction r)
{
    typedef typename ek_compute<T>::type A;
    const operation<A, (N > 1)> op(r.kind);
    int side = (int)threadIdx.x & (r.width - 1), first = (int)threadIdx.x / r.width;
    int64_t across = (r.columns + (int64_t)r.width * N - 1) / ((int64_t)r.width * N);
    int64_t tasks = across * r.kept.count * r.chunks;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        int64_t part = task / across, chunk = part / r.kept.count;
        int64_t kept = part - chunk * r.kept.count;
        int64_t column = ((task - part * across) * r.width + side) * N;
        int64_t begin = chunk * r.chunk, end = begin + r.chunk, offset[2];
        end = end < r.reduced.count ? end : r.reduced.count;
        ek_offsets(r.kept, kept, offset);
        A total[N];
        EK_EACH(j, N)
            total[j] = op.start();
        if (column < r.columns)
            reduce_take_rows<T, N>(r, op, (const T *)r.x + offset[0] + column * r.column_x,
                                   begin + first, end, EK_BLOCK / r.width, total);
        reduce_join_rows<N>(op, r.width, total);
        if (first != 0 || column >= r.columns)
            continue;
        EK_EACH(j, N)
            ek_store_as(r.out, r.out_dtype,
                        r.chunks > 1 ? part * r.columns + column + j
                                     : offset[1] + (column + j) * r.column_out,
                        total[j]);
    }
}

/* ---- launching ---- */

template <typename T, int N>
static int launch_reduce(const ek_cuda_stream *stream, const ek_cuda_reduction *r)
{
    if (!r->by_columns)
        return ek_launch(stream, ek_team_grid(stream, r->team, r->kept.count * r->chunks),
                         reduce_rows<T, N>, *r);
    int64_t width = (int64_t)r->width * N;
    int64_t tasks = (r->columns + width - 1) / width * r->kept.count * r->chunks;
    return ek_launch(stream, ek_grid(stream, tasks, 1), reduce_columns<T, N>, *r);
}

int ek_cuda_launch_reduce(const ek_cuda_stream *stream, const ek_cuda_reduction *r)
{
    if (r->pack == 1)
        EK_ANY_DTYPE(r->x_dtype, T, return launch_reduce<T, 1>(stream, r))
    EK_FLOATING(r->x_dtype, T, return launch_reduce<T, 16 / sizeof(T)>(stream, r))
}

/* ---- positions of extremes ---- */

template <typename A> struct candidate {
    A value;
    int64_t at; /* -1: none yet */
};

template <typename A> EK_DEVICE candidate<A> ek_exchange(candidate<A> own, int step)
{
    candidate<A> other;
    other.value = ek_exchange(own.value, step);
    other.at = ek_exchange(own.at, step);
    return other;
}

/* Chooses between two candidates for the extreme: the better one; of equal candidates the one at
 * the lower position. NaN is better than all numbers. */
template <typename A> struct choice {
    bool smallest;

    __device__ __forceinline__ candidate<A> operator()(candidate<A> a, candidate<A> b) const
    {
        if (b.at < 0)
            return a;
        if (a.at < 0)
            return b;
        bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
        bool better = smallest ? b.value < a.value : b.value > a.value;
        bool equal = b.value == a.value || (a_is_nan && b_is_nan);
        better = (!a_is_nan && (better || b_is_nan)) || (equal && b.at < a.at);
        return better ? b : a;
    }
};

template <typename T> EK_KERNEL arg_reduce(ek_cuda_arg_job job)
{
    typedef typename ek_compute<T>::type A;
    ek_team team = ek_team_of(job.team);
    choice<A> choose = {job.smallest};
    EK_TEAM_LOOP(line, team, job.lines.count) {
        candidate<A> best = {0, -1};
        int64_t offset[2] = {0, 0};
        if (line < job.lines.count) {
            ek_offsets(job.lines, line, offset);
            const T *x = (const T *)job.x + offset[1];
            for (int64_t i = team.lane; i < job.size; i += team.lanes) {
                candidate<A> next = {ek_load(x + i * job.stride), i};
                best = choose(best, next);
            }
        }
        best = ek_team_join(team, best, choose);
        if (line < job.lines.count && team.lane == 0)
            job.index[offset[0]] = best.at;
    }
}

int ek_cuda_launch_arg_reduce(const ek_cuda_stream *stream, const ek_cuda_arg_job *job)
{
    EK_ANY_DTYPE(job->dtype, T,
                 return ek_launch(stream, ek_team_grid(stream, job->team, job->lines.count),
                                  arg_reduce<T>, *job))
}
