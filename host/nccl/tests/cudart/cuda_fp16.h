/* See cuda_runtime.h. NCCL's header includes this one; what is in it is for kernels. */
