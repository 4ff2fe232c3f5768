/* See cuda_runtime.h. */
#include "cuda_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As many GPUs as FERROCCL_TEST_GPUS says, or 4. */
static int devices(void) {
  const char* said = getenv("FERROCCL_TEST_GPUS");
  return said == NULL ? 4 : atoi(said);
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the stand-in for the CUDA runtime";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "the CPU as GPU %d", device);
  properties->totalGlobalMem = (size_t)1 << 30;
  properties->major = 8;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return device < 0 || device >= devices() ? cudaErrorInvalidDevice : cudaSuccess; }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *pointer == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  memset(pointer, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  (void)kind;
  memcpy(to, from, bytes);
  return cudaSuccess;
}

/* A stream is an address that no other has. */
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = malloc(1);
  return *stream == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  (void)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  free(stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = NULL;
  return cudaErrorNotSupported;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return event == NULL ? cudaSuccess : cudaErrorNotSupported; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)event, (void)stream;
  return cudaErrorNotSupported;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  (void)event;
  return cudaErrorNotSupported;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  (void)start, (void)end;
  *milliseconds = 0;
  return cudaErrorNotSupported;
}
