// test_emulator.cpp: kernels: barriers, exchanges, atomics, and what ends the process.
#include <sys/wait.h>
#include <unistd.h>

#include "test_emulator.h"

TEST(block_sums)
{
    cudaStream_t stream = new_stream();
    for (int threads = 32; threads <= 1024; threads *= 2) {
        std::vector<float> x(5000);
        std::vector<double> z(5000);
        for (size_t i = 0; i < x.size(); i++)
            z[i] = x[i] = (float)(i % 7);
        float *sums = device_array<float>(3), *values = device_copy(x, stream);
        double *sums64 = device_array<double>(3), *values64 = device_copy(z, stream);
        OK(launch_block_sums_f32(stream, 3, threads, values, (int64_t)x.size(), sums));
        OK(launch_block_sums_f64(stream, 3, threads, values64, (int64_t)x.size(), sums64));
        double wanted[3] = {0};
        for (size_t i = 0; i < x.size(); i++)
            wanted[i / (size_t)threads % 3] += z[i];
        std::vector<float> got = host_copy(sums, 3, stream);
        std::vector<double> got64 = host_copy(sums64, 3, stream);
        for (size_t i = 0; i < 3; i++) {
            ck_assert_float_eq(got[i], (float)wanted[i]);
            ck_assert_double_eq(got64[i], wanted[i]);
        }
    }
}

TEST(exchanges)
{
    cudaStream_t stream = new_stream();
    int *results = device_array<int>(576);
    OK(launch_exchanges(stream, results));
    std::vector<int> got = host_copy(results, 576, stream);
    for (int self = 0; self < 64; self++) {
        int lane = self % 32, warp = self - lane, ballot = 0;
        for (int i = 0; i < 16; i++)
            ballot |= ((warp + i) % 3 == 0) << i;
        const int wanted[9] = {100 + warp + 5,
                               100 + (self ^ 3),
                               100 + (lane < 30 ? self + 2 : self),
                               100 + (lane < 4 ? self : self - 4),
                               100 + (lane % 8 == 7 ? self : self + 1),
                               ballot,
                               warp == 32,
                               warp == 0,
                               100 + (self ^ 1)};
        for (int i = 0; i < 9; i++)
            ck_assert_int_eq(got[(size_t)(64 * i + self)], wanted[i]);
    }
}

TEST(atomics)
{
    cudaStream_t stream = new_stream();
    int *results = device_array<int>(6);
    float *sum = device_array<float>(1);
    OK(cudaMemsetAsync(results, 0, 6 * sizeof(int), stream));
    OK(cudaMemsetAsync(sum, 0, sizeof(float), stream));
    OK(launch_atomics(stream, 100, results, sum));
    std::vector<int> got = host_copy(results, 6, stream);
    ck_assert_int_eq(got[0], 4950);
    ck_assert_int_eq(got[1], 99);
    ck_assert_int_eq(got[2], -99);
    ck_assert_int_ge(got[3], 1);
    ck_assert_int_eq(got[4], 1);
    ck_assert_int_eq(got[5], 0);
    ck_assert_float_eq(host_copy(sum, 1, stream)[0], 50);
}

TEST(places)
{
    cudaStream_t stream = new_stream();
    const dim3 shapes[][2] = {{dim3(1), dim3(1)},
                              {dim3(7), dim3(1024)},
                              {dim3(3, 4, 5), dim3(6, 7, 8)},
                              {dim3(2, 3), dim3(32, 32)},
                              {dim3(1, 1, 9), dim3(5, 1, 64)}};
    for (const auto &shape : shapes) {
        const dim3 &g = shape[0], &b = shape[1];
        size_t count = (size_t)g.x * g.y * g.z * b.x * b.y * b.z;
        unsigned *numbers = device_array<unsigned>(count);
        OK(launch_places(stream, g, b, numbers));
        std::vector<unsigned> got = host_copy(numbers, count, stream);
        for (size_t i = 0; i < count; i++)
            ck_assert_uint_eq(got[i], i);
    }
    unsigned *numbers = device_array<unsigned>(1);
    const dim3 wrong[][2] = {{dim3(1), dim3(1025)},
                             {dim3(1), dim3(32, 33)},
                             {dim3(1), dim3(1, 1, 65)},
                             {dim3(1, 65536), dim3(1)},
                             {dim3(0), dim3(1)}};
    for (const auto &shape : wrong)
        FAILS(launch_places(stream, shape[0], shape[1], numbers), cudaErrorInvalidConfiguration);
    FAILS(cudaGetLastError(), cudaErrorInvalidConfiguration);
    FAILS(cudaGetLastError(), cudaSuccess);
}

TEST(transpose)
{
    cudaStream_t stream = new_stream();
    const int size = 70;
    std::vector<float> x(size * size);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)i;
    float *from = device_copy(x, stream), *to = device_array<float>(x.size());
    OK(launch_transpose(stream, size, from, to));
    std::vector<float> got = host_copy(to, x.size(), stream);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            ck_assert_float_eq(got[(size_t)(i * size + j)], (float)(j * size + i));
}

TEST(votes)
{
    cudaStream_t stream = new_stream();
    for (int threads : {8, 50, 1024}) {
        int *results = device_array<int>((size_t)threads);
        OK(launch_vote(stream, threads, results));
        for (int got : host_copy(results, (size_t)threads, stream))
            ck_assert_int_eq(got, threads / 2 * 16 + 8 + 4);
    }
}

// The process that runs body ends by itself, and says something with these words.
template <typename Body> static void dies(Body body, const char *first, const char *second)
{
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        body();
        _exit(0);
    }
    close(ends[1]);
    char said[4096];
    size_t length = 0;
    ssize_t got;
    while ((got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = 0;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "it goes on: %s", said);
    ck_assert_msg(strstr(said, first) && strstr(said, second), "it says %s", said);
}

TEST(divergence_ends_the_process)
{
    struct {
        int (*launch)(cudaStream_t, float *);
        const char *words, *function;
    } const cases[] = {{launch_early_return, "returned", "early_return"},
                       {launch_two_barriers, "different barriers", "two_barriers"},
                       {launch_half_shuffle, "never reach", "half_shuffle"}};
    for (const auto &c : cases)
        dies(
            [&] {
                cudaStream_t stream = new_stream();
                c.launch(stream, device_array<float>(64));
                cudaStreamSynchronize(stream);
            },
            c.words, c.function);
}

TEST(missing_barrier_shows)
{
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(64);
    OK(launch_missing_barrier(stream, x));
    ck_assert_float_ne(host_copy(x, 64, stream)[0], 63);
}

#ifdef __SANITIZE_ADDRESS__
TEST(overruns_end_the_process)
{
    dies(
        [] {
            cudaStream_t stream = new_stream();
            launch_add(stream, 65, device_array<float>(64), 1);
            cudaStreamSynchronize(stream);
        },
        "heap-buffer-overflow", "in add ");
}
#endif
