/* peer.c: which GPUs reach each other's memory.
 *
 * Some machines (with an IOMMU between the GPUs, virtual machines) report that GPUs reach each
 * other, and then deliver wrong bytes. So each pair is tested at its first use: by copies in both
 * directions, and by kernels that read and write the other GPU's memory. */
#include <stdlib.h>
#include <string.h>

#include "cuda/devices.h"
#include "cuda/launches.h"
#include "cuda/stream.h"
#include "cuda/transfer.h"

enum { UNKNOWN, REACHED, APART };
enum { PROBE = 8 << 10 };

static atomic_int peer_pairs[EK_CUDA_GPUS][EK_CUDA_GPUS];
static pthread_mutex_t peer_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns true on success. An error means only that the pair can't be used, and is cleared. */
static bool peer_good(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess;
}

/* A trial between two GPUs: memory on both, and the bytes that are sent and received. */
typedef struct peer_probe {
    const ek_cuda_device *a, *b;
    void *on_a, *on_b;
    unsigned char sent[PROBE], received[PROBE];
} peer_probe;

/* Lets `a`, which is current, use the memory of `b`. Returns false if that isn't possible. */
static bool peer_enable(peer_probe *p)
{
    const ek_cuda_device *a = p->a, *b = p->b;
    int possible = 0;
    if (!peer_good(cudaDeviceCanAccessPeer(&possible, a->physical, b->physical)) || !possible)
        return false;
    cudaError_t error = cudaDeviceEnablePeerAccess(b->physical, 0);
    return peer_good(error) || error == cudaErrorPeerAccessAlreadyEnabled;
}

/* Reads the bytes on `b` by the host. Returns true if they are the bytes that were sent. */
static bool peer_arrived(peer_probe *p)
{
    memset(p->received, 0, PROBE);
    return peer_good(
               cudaMemcpyAsync(p->received, p->on_b, PROBE, cudaMemcpyDeviceToHost, p->b->copy)) &&
           peer_good((cudaError_t)ek_cuda_wait_stream(p->b, p->b->copy)) &&
           memcmp(p->received, p->sent, PROBE) == 0;
}

static bool peer_try_copy(peer_probe *p)
{
    for (int i = 0; i < PROBE; i++)
        p->sent[i] = (unsigned char)(i * 37 + p->a->physical * 11 + 5 + i / 256);
    return peer_good(
               cudaMemcpyAsync(p->on_a, p->sent, PROBE, cudaMemcpyHostToDevice, p->a->copy)) &&
           peer_good(cudaMemcpyPeerAsync(p->on_b, p->b->physical, p->on_a, p->a->physical, PROBE,
                                         p->a->copy)) &&
           peer_good((cudaError_t)ek_cuda_wait_stream(p->a, p->a->copy)) && peer_arrived(p);
}

/* Runs a kernel of `a`, which is current, that copies `from` to `to`. */
static bool peer_run_kernel(const peer_probe *p, void *to, void *from)
{
    enum { COUNT = PROBE / sizeof(float) };
    ek_cuda_stream stream = {.handle = p->a->copy, .multiprocessors = p->a->multiprocessors};
    ek_cuda_walk walk = {.ndim = 1,
                         .operands = 2,
                         .count = COUNT,
                         .shape = {COUNT},
                         .stride = {{1}, {1}},
                         .data = {to, from},
                         .dtype = {EK_F32, EK_F32},
                         .flat = true};
    return peer_good((cudaError_t)ek_cuda_launch_copy(&stream, &walk, sizeof(float)));
}

/* Tries kernels of `a` that read the memory of `b` and write to it. */
static bool peer_try_kernels(peer_probe *p)
{
    bool works = peer_good(cudaMemsetAsync(p->on_a, 0, PROBE, p->a->copy)) &&
                 peer_run_kernel(p, p->on_a, p->on_b) &&
                 peer_good(cudaMemsetAsync(p->on_b, 0, PROBE, p->a->copy)) &&
                 peer_run_kernel(p, p->on_b, p->on_a);
    return peer_good((cudaError_t)ek_cuda_wait_stream(p->a, p->a->copy)) && works &&
           peer_arrived(p);
}

static bool peer_allocate(const ek_cuda_device *device, void **memory)
{
    int restore;
    if (!peer_good((cudaError_t)ek_cuda_guard_enter(device->physical, &restore)))
        return false;
    bool made = peer_good(cudaMalloc(memory, PROBE));
    return peer_good((cudaError_t)ek_cuda_guard_leave(device->physical, restore)) && made;
}

/* Calls `body` with the GPU of p->a current. */
static bool peer_with_a(peer_probe *p, bool (*body)(peer_probe *p))
{
    int restore;
    if (!peer_good((cudaError_t)ek_cuda_guard_enter(p->a->physical, &restore)))
        return false;
    bool result = body(p);
    return peer_good((cudaError_t)ek_cuda_guard_leave(p->a->physical, restore)) && result;
}

/* Tries the direction from `a`, which is current, to `b`. */
static bool peer_try_out(peer_probe *p)
{
    bool works = peer_allocate(p->b, &p->on_b) && peer_allocate(p->a, &p->on_a) &&
                 peer_try_copy(p) && peer_try_kernels(p);
    if (p->on_a)
        peer_good((cudaError_t)ek_cuda_free(p->on_a));
    if (p->on_b)
        peer_good((cudaError_t)ek_cuda_free(p->on_b));
    return works;
}

static bool peer_try_pair(const ek_cuda_device *a, const ek_cuda_device *b)
{
    peer_probe *there = calloc(1, sizeof *there), *back = calloc(1, sizeof *back);
    bool works = false;
    if (there && back) {
        there->a = back->b = a;
        there->b = back->a = b;
        works = peer_with_a(there, peer_enable) && peer_with_a(back, peer_enable);
        if (works && !(peer_with_a(there, peer_try_out) && peer_with_a(back, peer_try_out))) {
            works = false;
            ek_log_line(EK_LOG_WARNING,
                        "GPUs %d and %d say that they reach each other's memory, but wrong bytes "
                        "arrive: copies between them go through the host",
                        a->physical, b->physical);
        }
    }
    free(there);
    free(back);
    return works;
}

bool ek_cuda_peers(const ek_cuda_device *a, const ek_cuda_device *b)
{
    if (a->physical > b->physical)
        return ek_cuda_peers(b, a);
    atomic_int *pair = &peer_pairs[a->physical][b->physical];
    int state = atomic_load_explicit(pair, memory_order_acquire);
    if (state != UNKNOWN)
        return state == REACHED;
    pthread_mutex_lock(&peer_lock);
    if (atomic_load(pair) == UNKNOWN) {
        bool works = peer_try_pair(a, b);
        ek_log_line(EK_LOG_INFO, "GPUs %d and %d %s", a->physical, b->physical,
                    works ? "reach each other's memory"
                          : "don't reach each other's memory: copies go through the host");
        atomic_store(pair, works ? REACHED : APART);
    }
    state = atomic_load(pair);
    pthread_mutex_unlock(&peer_lock);
    return state == REACHED;
}
