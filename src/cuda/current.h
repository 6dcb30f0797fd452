/* current.h: a GPU is current for the calling thread for a while, and then what was before.
 *
 * cudaSetDevice makes a context on the GPU it names, some hundred megabytes of its memory, so that
 * it cannot put back the GPU that a thread without any context would begin with. The driver's stack
 * of contexts can: what is popped leaves the thread as it was. */
#ifndef EK_CUDA_CURRENT_H
#define EK_CUDA_CURRENT_H

/* Makes the CUDA runtime's GPU `physical` current; *restore is what leave wants back. A
 * cudaError_t; after an error there is nothing to leave. They nest. */
int ek_cuda_current_enter(int physical, int *restore);
int ek_cuda_current_leave(int physical, int restore);

#endif
