/* Memory, windows, parameters. */
#include "test.h"

#define N 3
static ncclComm_t comm[N];

static void allocations(void) {
    void* all[40];
    for (int i = 0; i < 40; i++) {
        size_t bytes = i < 20 ? (size_t)i : (size_t)draw(1 << 20);
        OK(ncclMemAlloc(&all[i], bytes));
        CHECK(all[i] && (uintptr_t)all[i] % 256 == 0);
        memset(all[i], i, bytes);
    }
    for (int i = 39; i >= 0; i--) {
        OK(ncclMemFree(all[i]));
        REFUSED(ncclInvalidArgument, "ptr", ncclMemFree(all[i]));
    }
    char* one;
    OK(ncclMemAlloc((void**)&one, 100));
    REFUSED(ncclInvalidArgument, "ptr", ncclMemFree(one + 1));
    OK(ncclMemFree(one));
    REFUSED(ncclInvalidArgument, "size", ncclMemAlloc((void**)&one, SIZE_MAX));
}

/* Calls in and beside registered buffers, at odd places of them. */
static void windows(int flags, int own) {
    enum { COUNT = 5000 };
    float* buffer[N];
    ncclWindow_t window[N];
    for (int r = 0; r < N; r++) {
        if (own) OK(ncclMemAlloc((void**)&buffer[r], COUNT * sizeof(float)));
        else buffer[r] = room(COUNT * sizeof(float));
    }
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclCommWindowRegister(comm[r], buffer[r], COUNT * sizeof(float), &window[r], flags));
    OK(ncclGroupEnd());
    for (int r = 0; r < N; r++) {
        void* back;
        CHECK(window[r]);
        OK(ncclWinGetUserPtr(comm[r], window[r], &back));
        CHECK(back == buffer[r]);
        REFUSED(ncclInvalidArgument, "win", ncclWinGetUserPtr(comm[(r + 1) % N], window[r], &back));
    }
    size_t offsets[] = {0, 1, 63, 1000}, counts[] = {1, 2, 777, 3999};
    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < N; r++)
            for (size_t k = 0; k < COUNT; k++) buffer[r][k] = (float)(r + 1) * (float)(k % 17);
        OK(ncclGroupStart());
        for (int r = 0; r < N; r++) {
            float* at = buffer[r] + offsets[i];
            OK(ncclAllReduce(at, at, counts[i], ncclFloat, ncclSum, comm[r], NULL));
        }
        OK(ncclGroupEnd());
        for (int r = 0; r < N; r++)
            for (size_t k = 0; k < COUNT; k++) {
                int in = k >= offsets[i] && k < offsets[i] + counts[i];
                float want = (float)(in ? N * (N + 1) / 2 : r + 1) * (float)(k % 17);
                if (buffer[r][k] != want) FAIL("rank %d, element %zu: %g, not %g", r, k, buffer[r][k], want);
            }
    }
    for (int r = 0; r < N; r++) {
        OK(ncclCommWindowDeregister(comm[r], window[r]));
        REFUSED(ncclInvalidArgument, "win", ncclCommWindowDeregister(comm[r], window[r]));
    }
    for (int r = 0; r < N; r++)
        if (own) OK(ncclMemFree(buffer[r]));
        else free(buffer[r]);
}

static void wrong_windows(void) {
    char bytes[64];
    ncclWindow_t window[N];
    REFUSED(ncclInvalidArgument, "winFlags", ncclCommWindowRegister(comm[0], bytes, 64, &window[0], 0x40));
    REFUSED(ncclInvalidArgument, "size", ncclCommWindowRegister(comm[0], bytes, 0, &window[0], 0));
    REFUSED(ncclInvalidArgument, "buff", ncclCommWindowRegister(comm[0], NULL, 8, &window[0], 0));
    REFUSED(ncclInvalidArgument, "win", ncclCommWindowRegister(comm[0], bytes, 8, NULL, 0));
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclCommWindowRegister(comm[r], bytes, 8 + (size_t)r, &window[r], NCCL_WIN_COLL_SYMMETRIC));
    REFUSED(ncclInvalidArgument, "size", ncclGroupEnd());
    for (int r = 0; r < N; r++) CHECK(window[r] == NULL);
}

static void buffers(void) {
    char bytes[64];
    void *handle, *other;
    OK(ncclCommRegister(comm[0], bytes, sizeof bytes, &handle));
    OK(ncclCommRegister(comm[1], bytes, sizeof bytes, &other));
    REFUSED(ncclInvalidArgument, "handle", ncclCommDeregister(comm[0], other));
    OK(ncclCommDeregister(comm[0], handle));
    REFUSED(ncclInvalidArgument, "handle", ncclCommDeregister(comm[0], handle));
    OK(ncclCommDeregister(comm[0], NULL));
    REFUSED(ncclInvalidArgument, "size", ncclCommRegister(comm[0], bytes, 0, &handle));
    /* comm[1]'s stays: the communicator takes it along. */
}

static void params(void) {
    const char **keys, *value;
    int count, length, found = 0;
    ncclParamHandle_t handle;
    OK(ncclParamGetAllParameterKeys(&keys, &count));
    CHECK(count > 50);
    for (int i = 0; i < count; i++) {
        OK(ncclParamGetParameter(keys[i], &value, &length));
        CHECK((int)strlen(value) == length);
        found += !strcmp(keys[i], "NCCL_BUFFSIZE");
        OK(ncclParamBind(&handle, keys[i]));
        OK(ncclParamGetStr(handle, &value));
    }
    CHECK(found == 1);
    /* The program is started with NCCL_BUFFSIZE=1M, NCCL_NTHREADS=256. */
    int64_t wide;
    int16_t small;
    uint8_t smaller;
    int8_t smallest;
    uint64_t unsigned_wide;
    char bytes[64];
    OK(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
    OK(ncclParamGetI64(handle, &wide));
    OK(ncclParamGetU64(handle, &unsigned_wide));
    CHECK(wide == 1 << 20 && unsigned_wide == 1 << 20);
    REFUSED(ncclInvalidArgument, "too small", ncclParamGetI16(handle, &small));
    OK(ncclParamGetStr(handle, &value));
    CHECK(!strcmp(value, "1M"));
    OK(ncclParamBind(&handle, "NCCL_NTHREADS"));
    OK(ncclParamGetI16(handle, &small));
    CHECK(small == 256);
    REFUSED(ncclInvalidArgument, "too small", ncclParamGetU8(handle, &smaller));
    REFUSED(ncclInvalidArgument, "too small", ncclParamGetI8(handle, &smallest));
    OK(ncclParamGet(handle, bytes, sizeof bytes, &length));
    CHECK(length == 8 && !memcmp(bytes, &(int64_t){256}, 8));
    REFUSED(ncclInvalidArgument, "maxLen", ncclParamGet(handle, bytes, 7, &length));
    OK(ncclParamBind(&handle, "FERROCCL_DEVICE"));
    REFUSED(ncclInvalidArgument, "no number", ncclParamGetI64(handle, &wide));
    OK(ncclParamGet(handle, bytes, sizeof bytes, &length));
    CHECK(length == 3 && !memcmp(bytes, "cpu", 3));
    REFUSED(ncclInvalidArgument, "key", ncclParamBind(&handle, "NCCL_NOSUCH"));
    REFUSED(ncclInvalidArgument, "key", ncclParamBind(&handle, NULL));
    REFUSED(ncclInvalidArgument, "h", ncclParamGetI64((ncclParamHandle_t)bytes, &wide));
    REFUSED(ncclInvalidArgument, "h", ncclParamGetI64(NULL, &wide));
    REFUSED(ncclInvalidArgument, "key", ncclParamGetParameter("NCCL_NOSUCH", &value, &length));
    CHECK(value == NULL && length == 0);
    ncclParamDumpAll();
    pncclParamDumpAll();
}

/* The twins do the same, and are other functions. */
static void twins(void) {
    float x[N] = {1, 2, 3}, y[N];
    CHECK((void*)ncclAllReduce != (void*)pncclAllReduce);
    OK(pncclGroupStart());
    for (int r = 0; r < N; r++) OK(pncclAllReduce(&x[r], &y[r], 1, ncclFloat, ncclSum, comm[r], NULL));
    OK(pncclGroupEnd());
    CHECK(y[0] == 6 && y[1] == 6 && y[2] == 6);
    REFUSED(ncclInvalidUsage, "pncclGroupEnd", pncclGroupEnd());
}

int main(void) {
    OK(ncclCommInitAll(comm, N, NULL));
    allocations();
    int flags[] = {NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING};
    for (int i = 0; i < 3; i++)
        for (int own = 0; own < 2; own++) windows(flags[i], own);
    wrong_windows();
    buffers();
    params();
    twins();
    for (int r = 0; r < N; r++) OK(ncclCommDestroy(comm[r]));
    puts("passed");
    return 0;
}
