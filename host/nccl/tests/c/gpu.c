/* A program with GPUs: its contexts, streams and device memory, by the driver that FERROCCL_CUDA_LIBRARY names: the tests' stand-in. */
#include <dlfcn.h>
#include "test.h"

static void* driver;

/* A function of the driver's. */
#define CU(name, ...) \
    do { \
        int (*function_)() = (int (*)())dlsym(driver, name); \
        CHECK(function_); \
        int got_ = function_(__VA_ARGS__); \
        if (got_) FAIL("%s: %d", name, got_); \
    } while (0)

enum { COUNT = 5000, N = 2 };
static void *context[N], *stream[N], *second[N];
static unsigned long long memory[N], result[N];
static float host[COUNT];

static void write_all(int scale) {
    for (int r = 0; r < N; r++) {
        for (int i = 0; i < COUNT; i++) host[i] = (float)(scale * (r + 1) * (i % 100));
        CU("cuCtxPushCurrent_v2", context[r]);
        CU("cuMemcpyHtoDAsync_v2", memory[r], host, sizeof host, stream[r]);
        CU("cuStreamSynchronize", stream[r]);
        CU("cuCtxPopCurrent_v2", NULL);
    }
}

/* What rank `r` has at `at`, after its stream. */
static void expect(int r, unsigned long long at, void* on, int factor) {
    CU("cuCtxPushCurrent_v2", context[r]);
    CU("cuMemcpyDtoHAsync_v2", host, at, sizeof host, on);
    CU("cuStreamSynchronize", on);
    CU("cuCtxPopCurrent_v2", NULL);
    for (int i = 0; i < COUNT; i++)
        if (host[i] != (float)(factor * (i % 100))) FAIL("rank %d, %d: %g, not %d", r, i, host[i], factor * (i % 100));
}

static void calls(ncclComm_t* comm) {
    for (int r = 0; r < N; r++) {
        int device;
        OK(ncclCommCuDevice(comm[r], &device));
        CHECK(device == r);
    }
    write_all(1);
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclAllReduce((void*)memory[r], (void*)result[r], COUNT, ncclFloat, ncclSum, comm[r], stream[r]));
    OK(ncclGroupEnd());
    for (int r = 0; r < N; r++) expect(r, result[r], stream[r], 3);
    /* In place, and on another stream, behind the first. */
    for (int i = 0; i < 3; i++) {
        OK(ncclGroupStart());
        for (int r = 0; r < N; r++)
            OK(ncclAllReduce((void*)result[r], (void*)result[r], COUNT, ncclFloat, ncclSum, comm[r],
                             i % 2 ? stream[r] : second[r]));
        OK(ncclGroupEnd());
    }
    for (int r = 0; r < N; r++) expect(r, result[r], second[r], 3 * 8);
    /* A stream of another GPU is refused. */
    REFUSED(ncclInvalidArgument, "stream",
            ncclAllReduce((void*)memory[0], (void*)result[0], COUNT, ncclFloat, ncclSum, comm[0], stream[1]));
}

int main(void) {
    driver = dlopen(getenv("FERROCCL_CUDA_LIBRARY"), RTLD_NOW | RTLD_GLOBAL);
    CHECK(driver);
    ncclComm_t comm[N];
    ncclUniqueId id;
    CU("cuInit", 0);
    for (int r = 0; r < N; r++) {
        CU("cuDevicePrimaryCtxRetain", &context[r], r);
        CU("cuCtxPushCurrent_v2", context[r]);
        CU("cuStreamCreate", &stream[r], 0);
        CU("cuStreamCreate", &second[r], 1);
        CU("cuMemAlloc_v2", &memory[r], sizeof host);
        CU("cuMemAlloc_v2", &result[r], sizeof host);
        CU("cuCtxPopCurrent_v2", NULL);
    }
    REFUSED(ncclInvalidArgument, "devlist", ncclCommInitAll(comm, N + 1, NULL));
    OK(ncclCommInitAll(comm, N, NULL));
    calls(comm);
    for (int r = 0; r < N; r++) OK(ncclCommDestroy(comm[r]));
    /* By an id: each on the GPU whose context is current. */
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++) {
        CU("cuCtxPushCurrent_v2", context[r]);
        OK(ncclCommInitRank(&comm[r], N, id, r));
        CU("cuCtxPopCurrent_v2", NULL);
    }
    OK(ncclGroupEnd());
    calls(comm);
    /* Memory of ncclMemAlloc is the current GPU's, and windows are made of it. */
    void* window_memory[N];
    ncclWindow_t window[N];
    for (int r = 0; r < N; r++) {
        CU("cuCtxPushCurrent_v2", context[r]);
        OK(ncclMemAlloc(&window_memory[r], sizeof host));
        for (int i = 0; i < COUNT; i++) host[i] = (float)((r + 1) * (i % 100));
        CU("cuMemcpyHtoDAsync_v2", (unsigned long long)(uintptr_t)window_memory[r], host, sizeof host, stream[r]);
        CU("cuStreamSynchronize", stream[r]);
        CU("cuCtxPopCurrent_v2", NULL);
    }
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclCommWindowRegister(comm[r], window_memory[r], sizeof host, &window[r], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclAllReduce(window_memory[r], window_memory[r], COUNT, ncclFloat, ncclSum, comm[r], stream[r]));
    OK(ncclGroupEnd());
    for (int r = 0; r < N; r++) expect(r, (unsigned long long)(uintptr_t)window_memory[r], stream[r], 3);
    for (int r = 0; r < N; r++) {
        OK(ncclCommWindowDeregister(comm[r], window[r]));
        OK(ncclMemFree(window_memory[r]));
    }
    /* Their memory goes, and comes again. */
    uint64_t bytes;
    OK(ncclCommMemStats(comm[0], ncclStatGpuMemTotal, &bytes));
    CHECK(bytes > 1 << 20);
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++) OK(ncclCommSuspend(comm[r], NCCL_SUSPEND_MEM));
    OK(ncclGroupEnd());
    OK(ncclCommMemStats(comm[0], ncclStatGpuMemTotal, &bytes));
    CHECK(bytes == 0);
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++) OK(ncclCommResume(comm[r]));
    OK(ncclGroupEnd());
    calls(comm);
    for (int r = 0; r < N; r++) OK(ncclCommFinalize(comm[r]));
    for (int r = 0; r < N; r++) OK(ncclCommDestroy(comm[r]));
    puts("passed");
    return 0;
}
