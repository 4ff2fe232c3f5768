/* What the test programs share. They run on CPU devices: pointers are the host's, and a call has ended when it returns. */
#ifndef TEST_H
#define TEST_H

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fails the program, with what the library says. */
#define FAIL(...) \
    do { \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__); \
        fprintf(stderr, "\n  last error: %s\n", ncclGetLastError(NULL)); \
        exit(1); \
    } while (0)

#define CHECK(condition) \
    do { \
        if (!(condition)) FAIL("not so: %s", #condition); \
    } while (0)

/* That a call answers so. */
#define ANSWERS(want, call) \
    do { \
        ncclResult_t got_ = (call); \
        if (got_ != (want)) FAIL("%s: %d (%s), not %d", #call, (int)got_, ncclGetErrorString(got_), (int)(want)); \
    } while (0)

#define OK(call) ANSWERS(ncclSuccess, call)

/* That a call is refused, with words that say why. */
#define REFUSED(want, words, call) \
    do { \
        ANSWERS(want, call); \
        if (!strstr(ncclGetLastError(NULL), words)) FAIL("%s: no \"%s\"", #call, words); \
    } while (0)

#define MOST 8

/* xorshift: the same numbers each time. */
static uint64_t seed_ = 88172645463325252ull;
static inline uint64_t draw(uint64_t below) {
    seed_ ^= seed_ << 13;
    seed_ ^= seed_ >> 7;
    seed_ ^= seed_ << 17;
    return seed_ % below;
}

static inline void* room(size_t bytes) {
    void* memory = NULL;
    /* With something in it, so that what is not written shows. */
    CHECK(posix_memalign(&memory, 64, bytes + 64) == 0);
    memset(memory, 0xa5, bytes + 64);
    return memory;
}

/* Waits until nothing is in progress, and gives what has come of it. */
static inline ncclResult_t settled(ncclComm_t comm) {
    ncclResult_t state;
    do {
        OK(ncclCommGetAsyncError(comm, &state));
    } while (state == ncclInProgress);
    return state;
}

#endif
