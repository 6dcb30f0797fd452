/* machine.h: what the machine can do at most, so that times can be told as shares of it. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

/* Operations per second in f32, a product or a sum each, of so many threads that multiply and add
 * in registers at the same time: each one's best of many short rounds; 0 if there can be no
 * threads. */
double machine_peak(int threads);

/* Bytes per second that so many threads read and write in a triad (a = b + s c) over arrays several
 * times as large as the caches, counted as STREAM does. The best of some rounds; 0 if there is no
 * memory or there can be no threads. */
double machine_bandwidth(int threads);

#endif
