/* reduce.cu: sums and extremes. Four loads are under way at once per thread; their values are
 * joined before they reach the accumulator, which keeps its chain of roundings short. */
#include "cuda/places.cuh"

#include "cuda/reduce.h"

/* ---- operations ---- */

static __device__ __forceinline__ float add(float a, float b)
{
    return a + b;
}
static __device__ __forceinline__ double add(double a, double b)
{
    return a + b;
}
static __device__ __forceinline__ int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b); /* wraps */
}

static __device__ __forceinline__ float multiply(float a, float b)
{
    return a * b;
}
static __device__ __forceinline__ double multiply(double a, double b)
{
    return a * b;
}
static __device__ __forceinline__ int64_t multiply(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* The largest, or with its sign turned the smallest, value there is. */
static __device__ __forceinline__ void set_limit(float *value, bool largest)
{
    *value = largest ? INFINITY : -INFINITY;
}
static __device__ __forceinline__ void set_limit(double *value, bool largest)
{
    *value = largest ? (double)INFINITY : -(double)INFINITY;
}
static __device__ __forceinline__ void set_limit(int64_t *value, bool largest)
{
    *value = largest ? INT64_MAX : INT64_MIN;
}

/* Packs are of sums only, which the compiler is told (SUM); else the operation is chosen when the
 * kernel runs: that costs less than the loads do, and half of the kernels. */
template <typename A, bool SUM> struct operation {
    bool extreme;
    bool flip; /* makes a sum one of squares, and a maximum a minimum */

    __device__ __forceinline__ explicit operation(ek_reduce_kind kind)
        : extreme(!SUM && kind >= EK_REDUCE_MAX),
          flip(kind == EK_REDUCE_SUM_SQUARES || kind == EK_REDUCE_MIN)
    {
    }
    __device__ __forceinline__ A start() const
    {
        A value = 0;
        if (extreme)
            set_limit(&value, flip);
        return value;
    }
    __device__ __forceinline__ A value(A v) const
    {
        return !extreme && flip ? multiply(v, v) : v;
    }
    /* Joins two accumulators. NaN wins. */
    __device__ __forceinline__ A operator()(A a, A b) const
    {
        if (!extreme)
            return add(a, b);
        return (flip ? b < a : b > a) || b != b ? b : a;
    }
    __device__ __forceinline__ A four(A a, A b, A c, A d) const
    {
        return (*this)((*this)(value(a), value(b)), (*this)(value(c), value(d)));
    }
};

/* ---- packs of 16 bytes ---- */

template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T element[N];
};

template <typename T, int N, typename A>
static __device__ __forceinline__ void load_pack(const T *from, A (&to)[N])
{
    pack<T, N> all = *(const pack<T, N> *)from;
#pragma unroll
    for (int j = 0; j < N; j++)
        to[j] = ek_load(&all.element[j]);
}

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
    const ek_cuda_places *reduced;
    __device__ __forceinline__ const T *at(int64_t i) const
    {
        int64_t offset[1];
        ek_place(*reduced, begin + i, offset);
        return from + offset[0];
    }
};

template <typename T, typename A, typename O, typename S>
static __device__ __forceinline__ A take_each(const O &op, const ek_team &team, A total,
                                              const S &source, int64_t n)
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

/* n elements that follow each other: those before the first multiple of 16 bytes, and after the
 * last, one by one. */
template <typename T, int N, typename A, typename O>
static __device__ A take_run(const O &op, const ek_team &team, A total, const T *from, int64_t n)
{
    int64_t head = (16 - (int64_t)((uintptr_t)from % 16)) % 16 / (int64_t)sizeof(T);
    head = head < n ? head : n;
    int64_t packs = (n - head) / N, step = team.lanes, tail = n - head - packs * N;
    for (int64_t i = team.lane; i < head + tail; i += step)
        total = op(total, op.value(ek_load(from + (i < head ? i : i + packs * N))));
    from += head;
    A part[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        part[j] = op.start();
    int64_t i = team.lane;
    for (; i + 3 * step < packs; i += 4 * step) {
        A a[N], b[N], c[N], d[N];
        load_pack<T, N>(from + i * N, a);
        load_pack<T, N>(from + (i + step) * N, b);
        load_pack<T, N>(from + (i + 2 * step) * N, c);
        load_pack<T, N>(from + (i + 3 * step) * N, d);
#pragma unroll
        for (int j = 0; j < N; j++)
            part[j] = op(part[j], op.four(a[j], b[j], c[j], d[j]));
    }
    for (; i < packs; i += step) {
        A a[N];
        load_pack<T, N>(from + i * N, a);
#pragma unroll
        for (int j = 0; j < N; j++)
            part[j] = op(part[j], op.value(a[j]));
    }
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
        for (int j = 0; j < width; j++)
            part[j] = op(part[j], part[j + width]);
    return op(total, part[0]);
}

template <typename T, int N, typename A, typename O>
static __device__ __forceinline__ A take_chunk(const ek_cuda_reduction &r, const O &op,
                                               const ek_team &team, const T *x, int64_t begin,
                                               int64_t end)
{
    A total = op.start();
    if (!r.runs) {
        places_of<T> source = {x, begin, &r.reduced};
        return take_each<T>(op, team, total, source, end - begin);
    }
    int last = r.reduced.ndim - 1;
    int64_t size = r.reduced.shape[last];
    while (begin < end) {
        int64_t offset[1], rest = size - (last == 0 ? begin : begin % size);
        rest = rest < end - begin ? rest : end - begin;
        ek_place(r.reduced, begin, offset);
        if (N > 1) {
            total = take_run<T, N>(op, team, total, x + offset[0], rest);
        } else {
            run_of<T> source = {x + offset[0], r.reduced.stride[0][last]};
            total = take_each<T>(op, team, total, source, rest);
        }
        begin += rest;
    }
    return total;
}

template <typename T, int N>
static __global__ __launch_bounds__(EK_BLOCK) void reduce_rows(ek_cuda_reduction r)
{
    typedef typename ek_compute<T>::type A;
    const operation<A, (N > 1)> op(r.kind);
    ek_team team = ek_team_of(r.team);
    int64_t tasks = r.kept.count * r.chunks;
    EK_TEAM_LOOP(task, team, tasks)
    {
        A total = op.start();
        int64_t chunk = 0, output = task, offset[2] = {0, 0};
        if (task < tasks) {
            if (r.chunks > 1) {
                chunk = task / r.kept.count;
                output = task - chunk * r.kept.count;
            }
            int64_t begin = chunk * r.chunk, end = begin + r.chunk;
            end = end < r.reduced.count ? end : r.reduced.count;
            ek_place(r.kept, output, offset);
            total = take_chunk<T, N, A>(r, op, team, (const T *)r.x + offset[0], begin, end);
        }
        total = ek_team_join(team, total, op);
        if (task < tasks && team.lane == 0)
            ek_store_as(r.out, r.out_dtype, r.chunks > 1 ? task : offset[1], total);
    }
}

/* ---- the innermost dimension is kept: threads lie along it, and several rows side by side ---- */

template <typename T, int N, typename A, typename O>
static __device__ __forceinline__ void take_rows(const ek_cuda_reduction &r, const O &op,
                                                 const T *x, int64_t row, int64_t end, int step,
                                                 A (&total)[N])
{
    int64_t offset[1];
    for (; row + 3 * step < end; row += 4 * step) {
        A v[4][N];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            ek_place(r.reduced, row + k * step, offset);
            load_pack<T, N>(x + offset[0], v[k]);
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = op(total[j], op.four(v[0][j], v[1][j], v[2][j], v[3][j]));
    }
    for (; row < end; row += step) {
        A v[N];
        ek_place(r.reduced, row, offset);
        load_pack<T, N>(x + offset[0], v);
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = op(total[j], op.value(v[j]));
    }
}

/* Joins the rows of a block; the result is the first row's. */
template <int N, typename A, typename O>
static __device__ __forceinline__ void join_rows(const O &op, int width, A (&total)[N])
{
    __shared__ A parts[N][EK_BLOCK];
    int thread = (int)threadIdx.x;
    __syncthreads(); /* `parts` may still be read from the task before */
#pragma unroll
    for (int j = 0; j < N; j++)
        parts[j][thread] = total[j];
    for (int half = EK_BLOCK / 2; half >= width; half /= 2) {
        __syncthreads();
        if (thread < half) {
#pragma unroll
            for (int j = 0; j < N; j++)
                parts[j][thread] = op(parts[j][thread], parts[j][thread + half]);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        total[j] = parts[j][thread];
}

template <typename T, int N>
static __global__ __launch_bounds__(EK_BLOCK) void reduce_columns(ek_cuda_reduction r)
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
        ek_place(r.kept, kept, offset);
        A total[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = op.start();
        if (column < r.columns)
            take_rows<T, N>(r, op, (const T *)r.x + offset[0] + column * r.column_x, begin + first,
                            end, EK_BLOCK / r.width, total);
        join_rows<N>(op, r.width, total);
        if (first != 0 || column >= r.columns)
            continue;
#pragma unroll
        for (int j = 0; j < N; j++)
            ek_store_as(r.out, r.out_dtype,
                        r.chunks > 1 ? part * r.columns + column + j
                                     : offset[1] + (column + j) * r.column_out,
                        total[j]);
    }
}

/* ---- launching ---- */

template <typename T, int N>
static int launch(const ek_cuda_queue *queue, const ek_cuda_reduction *r)
{
    if (!r->by_columns)
        return ek_launch(queue, ek_team_grid(queue, r->team, r->kept.count * r->chunks),
                         dim3(EK_BLOCK), reduce_rows<T, N>, *r);
    int64_t width = (int64_t)r->width * N;
    int64_t tasks = (r->columns + width - 1) / width * r->kept.count * r->chunks;
    return ek_launch(queue, dim3(ek_grid(queue, tasks, 1)), dim3(EK_BLOCK), reduce_columns<T, N>,
                     *r);
}

int ek_cuda_launch_reduce(const ek_cuda_queue *queue, const ek_cuda_reduction *r)
{
    if (r->pack == 1) {
        EK_ANY_DTYPE(r->x_dtype, T, return launch<T, 1>(queue, r))
    } else {
        EK_FLOATING(r->x_dtype, T, return launch<T, 16 / sizeof(T)>(queue, r))
    }
    return (int)cudaErrorInvalidValue;
}
