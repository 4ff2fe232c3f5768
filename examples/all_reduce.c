/* The sum of a vector over all ranks, by NCCL's interface. docs/first-steps.md has how to compile it.
 *
 * The memory is the host's, as FERROCCL_DEVICE=cpu takes it. On GPUs it would be cudaMalloc's. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, COUNT = 1 << 20 };

static void check(ncclResult_t result) {
    if (result == ncclSuccess) return;
    fprintf(stderr, "%s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
    exit(1);
}

int main(void) {
    ncclComm_t comms[RANKS];
    float* buffers[RANKS];

    check(ncclCommInitAll(comms, RANKS, NULL));
    for (int rank = 0; rank < RANKS; rank++) {
        buffers[rank] = malloc(COUNT * sizeof(float));
        for (int i = 0; i < COUNT; i++) buffers[rank][i] = (float)(rank + 1);
    }

    /* One thread calls for all ranks, so the calls are a group. */
    check(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        float* buffer = buffers[rank];
        check(ncclAllReduce(buffer, buffer, COUNT, ncclFloat, ncclSum, comms[rank], NULL));
    }
    check(ncclGroupEnd());

    for (int rank = 0; rank < RANKS; rank++) {
        printf("rank %d of %d: 1 + ... + %d = %g\n", rank, RANKS, RANKS, buffers[rank][COUNT - 1]);
        check(ncclCommDestroy(comms[rank]));
        free(buffers[rank]);
    }
    return 0;
}
