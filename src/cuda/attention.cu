/* attention.cu: attention and its gradients, a tile of TILE x TILE scores at a time; the formulas
 * are those of the host (host/attention.c). A block of threads has one thread for each score of a
 * tile. Products pass features through shared memory, FEATURES at a time. Sums of a tile's rows
 * stay in registers: a thread has columns x, x + TILE, x + 2 TILE, ... of row y. */
#include "cuda/attention.h"
#include "cuda/launch.cuh"

enum { TILE = 16, FEATURES = 32, CHUNKS = EK_ATTENTION_DEPTH / FEATURES };
static_assert(TILE * TILE == EK_BLOCK, "one thread for each score");

template <typename R> struct tile_memory {
    R a[TILE][FEATURES + 1], b[TILE][FEATURES + 1];
};

template <typename R> struct tile_scores {
    R of[TILE][TILE + 1];
};

struct tile_place {
    int x, y;
};

EK_DEVICE tile_place tile_place_of()
{
    tile_place place = {(int)threadIdx.x % TILE, (int)threadIdx.x / TILE};
    return place;
}

/* The rows of a head. Elements outside of it are 0. */
template <typename T> struct head_rows {
    const T *data;
    int64_t row, column, count;
    int features;

    __device__ __forceinline__ typename ek_compute<T>::type at(int64_t r, int c) const
    {
        typedef typename ek_compute<T>::type R;
        return r < count && c < features ? ek_load(data + r * row + c * column) : (R)0;
    }
};

template <typename T>
EK_DEVICE head_rows<T> head_rows_of(const ek_cuda_heads &x, int64_t batch, int64_t head,
                                    int64_t count, int features)
{
    head_rows<T> rows = {(const T *)x.data + batch * x.batch + head * x.head, x.row, x.column,
                         count, features};
    return rows;
}

/* Returns the product of row `y` of a tile of a and row `x` of a tile of b. All threads of the
 * block call it. */
template <typename T, typename R>
EK_DEVICE R tile_dot(tile_memory<R> &memory, const head_rows<T> &a, int64_t a_row,
                     const head_rows<T> &b, int64_t b_row)
{
    const tile_place place = tile_place_of();
    R sum = 0;
    for (int first = 0; first < a.features; first += FEATURES) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < TILE * FEATURES; i += EK_BLOCK) {
            const int r = i / FEATURES, c = i % FEATURES;
            memory.a[r][c] = a.at(a_row + r, first + c);
            memory.b[r][c] = b.at(b_row + r, first + c);
        }
        __syncthreads();
        EK_EACH(c, FEATURES)
            sum += memory.a[place.y][c] * memory.b[place.x][c];
    }
    return sum;
}

/* Computes sums += scores b, for a tile of b's rows. All threads of the block call it, after the
 * scores are written. */
template <typename T, typename R>
EK_DEVICE void tile_add(R (&sums)[2 * CHUNKS], tile_memory<R> &memory, const tile_scores<R> &scores,
                        const head_rows<T> &b, int64_t b_row)
{
    const tile_place place = tile_place_of();
    EK_EACH(chunk, CHUNKS) {
        if (chunk * FEATURES < b.features) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < TILE * FEATURES; i += EK_BLOCK) {
                const int r = i / FEATURES, c = i % FEATURES;
                memory.b[r][c] = b.at(b_row + r, chunk * FEATURES + c);
            }
            __syncthreads();
            EK_EACH(j, TILE) {
                const R p = scores.of[place.y][j];
                sums[2 * chunk] += p * memory.b[j][place.x];
                sums[2 * chunk + 1] += p * memory.b[j][place.x + TILE];
            }
        }
    }
}

/* Stores the thread's columns of row y of a tile, multiplied by `scale`. */
template <typename T, typename R>
EK_DEVICE void tile_store(const ek_cuda_heads &x, int64_t batch, int64_t head, int64_t row,
                          int64_t rows, int features, const R (&sums)[2 * CHUNKS], R scale)
{
    const tile_place place = tile_place_of();
    if (row + place.y >= rows)
        return;
    T *to = (T *)x.data + batch * x.batch + head * x.head + (row + place.y) * x.row;
    EK_EACH(k, 2 * CHUNKS) {
        const int c = place.x + k * TILE;
        if (c < features)
            ek_store(to + c * x.column, sums[k] * scale);
    }
}

/* Return the largest value, or the sum, over the threads of a tile's row. */
template <typename R> EK_DEVICE R tile_largest(R value)
{
    for (int step = TILE / 2; step > 0; step /= 2) {
        R other = __shfl_xor_sync(0xffffffffu, value, step);
        value = other > value ? other : value;
    }
    return value;
}
template <typename R> EK_DEVICE R tile_sum(R value)
{
    for (int step = TILE / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/* Returns true if both the query and the key exist, and the query may see the key. */
EK_DEVICE bool tile_sees(const ek_cuda_attention_job &job, int64_t row, int64_t key)
{
    return row < job.rows && key < job.keys && (!job.causal || key <= row);
}

template <typename R>
EK_DEVICE R tile_mask(const ek_cuda_attention_job &job, int64_t batch, int64_t head, int64_t row,
                      int64_t key)
{
    const ek_cuda_heads &m = job.mask;
    if (m.data == NULL)
        return 0;
    return ek_load_as<R>(m.data, job.mask_dtype,
                         batch * m.batch + head * m.head + row * m.row + key * m.column);
}

/* Returns dropout's factor of a probability; 1 without dropout. */
template <typename R>
EK_DEVICE R tile_factor(const ek_cuda_attention_job &job, int64_t head, int64_t row, int64_t key)
{
    if (!job.drops)
        return 1;
    const int64_t i = (head * job.rows + row) * job.keys + key;
    const int64_t number = job.draw.first + i + i / job.draw.row * job.draw.gap;
    uint32_t words[EK_PHILOX_BLOCK];
    ek_philox_words_of(job.draw.seed, job.draw.call, (uint64_t)(number / EK_PHILOX_BLOCK), words);
    return ek_philox_chosen(words[number % EK_PHILOX_BLOCK], ek_philox_choice_of(job.draw.a))
               ? (R)job.draw.b
               : (R)0;
}

/* ---- forward: a block for each tile of queries of a head ---- */

template <typename T> EK_KERNEL attention_forward(ek_cuda_attention_job job)
{
    typedef typename ek_compute<T>::type R;
    __shared__ tile_memory<R> memory;
    __shared__ tile_scores<R> scores;
    const tile_place place = tile_place_of();
    const int64_t tiles = (job.rows + TILE - 1) / TILE;
    const int64_t head = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE;
    const int64_t batch = head / job.heads, of_batch = head % job.heads;
    const int64_t group = of_batch / (job.heads / job.groups), row = first + place.y;
    const head_rows<T> q = head_rows_of<T>(job.q, batch, of_batch, job.rows, job.depth);
    const head_rows<T> k = head_rows_of<T>(job.k, batch, group, job.keys, job.depth);
    const head_rows<T> v = head_rows_of<T>(job.v, batch, group, job.keys, job.width);
    const int64_t last = job.causal && first + TILE < job.keys ? first + TILE : job.keys;
    R sums[2 * CHUNKS] = {0}, largest = -(R)INFINITY, sum = 0;
    for (int64_t keys = 0; keys < last; keys += TILE) {
        const int64_t key = keys + place.x;
        R score = tile_dot(memory, q, first, k, keys) * (R)job.scale;
        score = tile_sees(job, row, key) ? score + tile_mask<R>(job, batch, of_batch, row, key)
                                         : -(R)INFINITY;
        R most = tile_largest(score);
        most = most > largest ? most : largest;
        const R shift = most == -(R)INFINITY ? (R)0 : most; /* -inf - -inf would be NaN */
        const R correction = most == largest ? (R)1 : exp(largest - shift);
        R p = exp(score - shift);
        sum = sum * correction + tile_sum(p);
        largest = most;
        EK_EACH(c, 2 * CHUNKS)
            sums[c] *= correction;
        __syncthreads(); /* other threads may still read the scores of the tile before */
        scores.of[place.y][place.x] =
            tile_sees(job, row, key) ? p * tile_factor<R>(job, head, row, key) : (R)0;
        tile_add(sums, memory, scores, v, keys);
    }
    const bool none = largest == -(R)INFINITY && sum == 0;
    tile_store<T>(job.out, batch, of_batch, first, job.rows, job.width, sums,
                  none ? (R)0 : 1 / sum);
    if (row < job.rows && place.x == 0)
        ((R *)job.lse)[head * job.rows + row] = none ? (R)INFINITY : largest + log(sum);
}

/* A row whose lse is above -1e30 sees a key. For other rows the mask decides. */
template <typename T> EK_KERNEL attention_hidden(ek_cuda_attention_job job)
{
    typedef typename ek_compute<T>::type R;
    EK_GRID_LOOP(i, job.batch * job.heads * job.rows) {
        const int64_t head = i / job.rows, row = i % job.rows;
        const int64_t batch = head / job.heads, of_batch = head % job.heads;
        R *lse = (R *)job.lse + i;
        bool hidden = !(*lse > (R)-1e30);
        for (int64_t key = 0; key < job.keys && hidden; key++)
            hidden = !tile_sees(job, row, key) ||
                     tile_mask<R>(job, batch, of_batch, row, key) == -(R)INFINITY;
        if (hidden) {
            T *out = (T *)job.out.data + batch * job.out.batch + of_batch * job.out.head;
            for (int c = 0; c < job.width; c++)
                ek_store(out + row * job.out.row + c * job.out.column, (R)0);
            *lse = (R)INFINITY;
        }
    }
}

/* ---- gradients ---- */

/* Computes sum(dout out) of each row. */
template <typename T> EK_KERNEL attention_sums(ek_cuda_attention_job job)
{
    typedef typename ek_compute<T>::type R;
    EK_GRID_LOOP(i, job.batch * job.heads * job.rows) {
        const int64_t head = i / job.rows, row = i % job.rows;
        const int64_t batch = head / job.heads, of_batch = head % job.heads;
        const head_rows<T> dout = head_rows_of<T>(job.dout, batch, of_batch, job.rows, job.width);
        const head_rows<T> out = head_rows_of<T>(job.out, batch, of_batch, job.rows, job.width);
        R sum = 0;
        for (int c = 0; c < job.width; c++)
            sum += dout.at(row, c) * out.at(row, c);
        ((R *)job.sums)[i] = sum;
    }
}

/* The values of a score that the gradients need. */
template <typename R> struct tile_gradient {
    R dropped, ds; /* p z and p (dp z - sum), with dropout's factor z */
};

template <typename R>
EK_DEVICE tile_gradient<R> tile_gradient_of(const ek_cuda_attention_job &job, int64_t head,
                                            int64_t row, int64_t key, R score, R dp)
{
    tile_gradient<R> gradient = {0, 0};
    if (!tile_sees(job, row, key))
        return gradient;
    const int64_t at = head * job.rows + row;
    score = score * (R)job.scale + tile_mask<R>(job, head / job.heads, head % job.heads, row, key);
    const R p = exp(score - ((const R *)job.lse)[at]), factor = tile_factor<R>(job, head, row, key);
    gradient.dropped = p * factor;
    gradient.ds = p * (dp * factor - ((const R *)job.sums)[at]);
    return gradient;
}

/* Computes dq, with a block for each tile of queries of a head. */
template <typename T> EK_KERNEL attention_queries(ek_cuda_attention_job job)
{
    typedef typename ek_compute<T>::type R;
    __shared__ tile_memory<R> memory;
    __shared__ tile_scores<R> scores;
    const tile_place place = tile_place_of();
    const int64_t tiles = (job.rows + TILE - 1) / TILE;
    const int64_t head = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE;
    const int64_t batch = head / job.heads, of_batch = head % job.heads;
    const int64_t group = of_batch / (job.heads / job.groups);
    const head_rows<T> q = head_rows_of<T>(job.q, batch, of_batch, job.rows, job.depth);
    const head_rows<T> dout = head_rows_of<T>(job.dout, batch, of_batch, job.rows, job.width);
    const head_rows<T> k = head_rows_of<T>(job.k, batch, group, job.keys, job.depth);
    const head_rows<T> v = head_rows_of<T>(job.v, batch, group, job.keys, job.width);
    const int64_t last = job.causal && first + TILE < job.keys ? first + TILE : job.keys;
    R sums[2 * CHUNKS] = {0};
    for (int64_t keys = 0; keys < last; keys += TILE) {
        const R score = tile_dot(memory, q, first, k, keys);
        const R dp = tile_dot(memory, dout, first, v, keys);
        const tile_gradient<R> gradient =
            tile_gradient_of(job, head, first + place.y, keys + place.x, score, dp);
        __syncthreads();
        scores.of[place.y][place.x] = gradient.ds;
        tile_add(sums, memory, scores, k, keys);
    }
    tile_store<T>(job.dq, batch, of_batch, first, job.rows, job.depth, sums, (R)job.scale);
}

/* Computes dk and dv, with a block for each tile of keys of a group. Scores are transposed: row y
 * is a key. */
template <typename T> EK_KERNEL attention_keys(ek_cuda_attention_job job)
{
    typedef typename ek_compute<T>::type R;
    __shared__ tile_memory<R> memory;
    __shared__ tile_scores<R> scores, dropped;
    const tile_place place = tile_place_of();
    const int64_t tiles = (job.keys + TILE - 1) / TILE, members = job.heads / job.groups;
    const int64_t pair = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE;
    const int64_t batch = pair / job.groups, group = pair % job.groups;
    const head_rows<T> k = head_rows_of<T>(job.k, batch, group, job.keys, job.depth);
    const head_rows<T> v = head_rows_of<T>(job.v, batch, group, job.keys, job.width);
    R dk[2 * CHUNKS] = {0}, dv[2 * CHUNKS] = {0};
    for (int64_t member = 0; member < members; member++) {
        const int64_t of_batch = group * members + member, head = batch * job.heads + of_batch;
        const head_rows<T> q = head_rows_of<T>(job.q, batch, of_batch, job.rows, job.depth);
        const head_rows<T> dout = head_rows_of<T>(job.dout, batch, of_batch, job.rows, job.width);
        for (int64_t rows = job.causal ? first : 0; rows < job.rows; rows += TILE) {
            const R score = tile_dot(memory, k, first, q, rows);
            const R dp = tile_dot(memory, v, first, dout, rows);
            const tile_gradient<R> gradient =
                tile_gradient_of(job, head, rows + place.x, first + place.y, score, dp);
            __syncthreads();
            scores.of[place.y][place.x] = gradient.ds;
            dropped.of[place.y][place.x] = gradient.dropped;
            tile_add(dk, memory, scores, q, rows);
            tile_add(dv, memory, dropped, dout, rows);
        }
    }
    tile_store<T>(job.dk, batch, group, first, job.keys, job.depth, dk, (R)job.scale);
    tile_store<T>(job.dv, batch, group, first, job.keys, job.width, dv, (R)1);
}

static int64_t attention_tiles(int64_t count)
{
    return (count + TILE - 1) / TILE;
}

template <typename T>
static int attention_launch(const ek_cuda_stream *stream, const ek_cuda_attention_job &job)
{
    const int64_t blocks = job.batch * job.heads * attention_tiles(job.rows);
    return ek_launch(stream, dim3((unsigned)blocks), attention_forward<T>, job);
}

template <typename T>
static int attention_gradient_launch(const ek_cuda_stream *stream, const ek_cuda_attention_job &job)
{
    const int64_t heads = job.batch * job.heads;
    int error = ek_launch(stream, dim3(ek_grid(stream, heads * job.rows)), attention_sums<T>, job);
    if (error == 0)
        error = ek_launch(stream, dim3((unsigned)(heads * attention_tiles(job.rows))),
                          attention_queries<T>, job);
    if (error == 0)
        error =
            ek_launch(stream, dim3((unsigned)(job.batch * job.groups * attention_tiles(job.keys))),
                      attention_keys<T>, job);
    return error;
}

int ek_cuda_launch_attention(const ek_cuda_stream *stream, const ek_cuda_attention_job *job)
{
    EK_FLOATING(job->dtype, T, return attention_launch<T>(stream, *job))
    return 0;
}

int ek_cuda_launch_attention_hidden(const ek_cuda_stream *stream, const ek_cuda_attention_job *job)
{
    const dim3 grid(ek_grid(stream, job->batch * job->heads * job->rows));
    EK_FLOATING(job->dtype, T, return ek_launch(stream, grid, attention_hidden<T>, *job))
    return 0;
}

int ek_cuda_launch_attention_gradient(const ek_cuda_stream *stream,
                                      const ek_cuda_attention_job *job)
{
    EK_FLOATING(job->dtype, T, return attention_gradient_launch<T>(stream, *job))
    return 0;
}
