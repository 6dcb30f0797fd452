/* between.h: what is issued between devices, so that their streams never wait for each other in a
 * circle.
 *
 * A wait looks back in the order of issue, and of such waits alone no circle can come. The parts of
 * a collective wait for each other in both directions, and are issued one after another: a wait of
 * the last device for the first that came between them would hold up the last part for ever. So a
 * collective is issued while nobody issues waits between devices. */
#ifndef EK_CUDA_BETWEEN_H
#define EK_CUDA_BETWEEN_H

/* Around the issue of waits of one device's streams for another's; several threads at once. */
void ek_cuda_waits_begin(void);
void ek_cuda_waits_end(void);

/* Around the issue of all parts of a collective; one thread alone. */
void ek_cuda_parts_begin(void);
void ek_cuda_parts_end(void);

#endif
