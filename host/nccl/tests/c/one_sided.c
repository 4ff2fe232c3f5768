/* One-sided calls: puts and signals, between ranks of this thread, and what is wrong with them. */
#include "test.h"

#define N 4
static ncclComm_t comm[N];
static ncclWindow_t window[N];
enum { COUNT = 3000 };
static int* shared[N];
static int local[N][COUNT];

static void make(int contexts) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    config.numRmaCtx = contexts;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++) OK(ncclCommInitRankConfig(&comm[r], N, id, r, &config));
    OK(ncclGroupEnd());
    REFUSED(ncclInvalidUsage, "window", ncclSignal(1, 0, 0, 0, comm[0], NULL));
    for (int r = 0; r < N; r++) {
        OK(ncclMemAlloc((void**)&shared[r], COUNT * sizeof(int)));
        memset(shared[r], 0, COUNT * sizeof(int));
    }
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclCommWindowRegister(comm[r], shared[r], COUNT * sizeof(int), &window[r], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclGroupEnd());
}

static void end(void) {
    for (int r = 0; r < N; r++) OK(ncclCommWindowDeregister(comm[r], window[r]));
    for (int r = 0; r < N; r++) OK(ncclCommDestroy(comm[r]));
    for (int r = 0; r < N; r++) OK(ncclMemFree(shared[r]));
}

/* Each rank puts into the next one's window, from memory in no window, at odd places; the next waits for it. */
static void ring(int ctx) {
    for (int turn = 0; turn < 50; turn++) {
        size_t count = 1 + (size_t)draw(500), at = (size_t)draw(COUNT - count);
        int sig = (int)draw(8);
        for (int r = 0; r < N; r++)
            for (size_t i = 0; i < count; i++) local[r][i] = turn * 1000 + r + (int)i * 7;
        OK(ncclGroupStart());
        for (int r = 0; r < N; r++)
            OK(ncclPutSignal(local[r], count, ncclInt, (r + 1) % N, window[r], at * sizeof(int), sig, ctx, 0, comm[r], NULL));
        for (int r = 0; r < N; r++) {
            ncclWaitSignalDesc_t wait = {1, (r + N - 1) % N, sig, ctx};
            OK(ncclWaitSignal(1, &wait, comm[r], NULL));
        }
        OK(ncclGroupEnd());
        for (int r = 0; r < N; r++)
            for (size_t i = 0; i < count; i++) {
                int want = turn * 1000 + (r + N - 1) % N + (int)i * 7;
                if (shared[r][at + i] != want) FAIL("rank %d, %zu: %d, not %d", r, i, shared[r][at + i], want);
            }
    }
}

/* A put alone returns: the peer takes no part. What it has written is there for who waits later. */
static void without_the_peer(void) {
    for (int i = 0; i < 5; i++) {
        local[0][i] = 40 + i;
        OK(ncclPutSignal(&local[0][i], 1, ncclInt, 2, window[0], (size_t)i * sizeof(int), 0, 0, 0, comm[0], NULL));
    }
    OK(ncclSignal(2, 1, 0, 0, comm[0], NULL));
    OK(ncclSignal(2, 1, 0, 0, comm[3], NULL));
    ncclWaitSignalDesc_t waits[] = {{5, 0, 0, 0}, {1, 0, 1, 0}, {1, 3, 1, 0}, {0, 1, 0, 0}};
    OK(ncclWaitSignal(4, waits, comm[2], NULL));
    for (int i = 0; i < 5; i++) CHECK(shared[2][i] == 40 + i);
    /* To itself, and without elements. */
    OK(ncclPutSignal(NULL, 0, ncclInt, 1, window[1], 0, 0, 0, 0, comm[1], NULL));
    OK(ncclWaitSignal(1, &(ncclWaitSignalDesc_t){1, 1, 0, 0}, comm[1], NULL));
    OK(ncclWaitSignal(0, NULL, comm[1], NULL));
}

/* Beside collectives, in one group. */
static void beside_calls(void) {
    int one[N], sum[N];
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++) {
        one[r] = 1, local[r][0] = 900 + r;
        OK(ncclPutSignal(local[r], 1, ncclInt, (r + 1) % N, window[r], 64, 2, 0, 0, comm[r], NULL));
        OK(ncclAllReduce(&one[r], &sum[r], 1, ncclInt, ncclSum, comm[r], NULL));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < N; r++) {
        OK(ncclWaitSignal(1, &(ncclWaitSignalDesc_t){1, (r + N - 1) % N, 2, 0}, comm[r], NULL));
        CHECK(sum[r] == N && shared[r][16] == 900 + (r + N - 1) % N);
    }
}

static void wrong(void) {
    ncclWaitSignalDesc_t wait = {1, 1, 0, 0};
    ncclWindow_t plain[N];
    const ncclResult_t arg = ncclInvalidArgument;
#define PUT(buffer, count, peer, win, offset, sig, ctx, flags) \
    ncclPutSignal(buffer, count, ncclInt, peer, win, offset, sig, ctx, flags, comm[0], NULL)
    REFUSED(arg, "localbuff", PUT(NULL, 1, 1, window[0], 0, 0, 0, 0));
    REFUSED(arg, "peer:", PUT(local, 1, N, window[0], 0, 0, 0, 0));
    REFUSED(arg, "peerWin", PUT(local, 1, 1, NULL, 0, 0, 0, 0));
    REFUSED(arg, "peerWin", PUT(local, 1, 1, window[1], 0, 0, 0, 0)); /* another rank's handle */
    REFUSED(arg, "peerWinOffset", PUT(local, 1, 1, window[0], COUNT * sizeof(int), 0, 0, 0));
    REFUSED(arg, "peerWinOffset", PUT(local, 2, 1, window[0], (COUNT - 1) * sizeof(int), 0, 0, 0));
    REFUSED(arg, "peerWinOffset", PUT(local, 1, 1, window[0], SIZE_MAX, 0, 0, 0));
    REFUSED(arg, "count", PUT(local, SIZE_MAX / 2, 1, window[0], 0, 0, 0, 0));
    REFUSED(arg, "sigIdx", PUT(local, 1, 1, window[0], 0, 8, 0, 0));
    REFUSED(arg, "sigIdx", PUT(local, 1, 1, window[0], 0, -1, 0, 0));
    REFUSED(arg, "ctx", PUT(local, 1, 1, window[0], 0, 0, 2, 0));
    REFUSED(arg, "flags", PUT(local, 1, 1, window[0], 0, 0, 0, 1));
    REFUSED(arg, "peer:", ncclSignal(-1, 0, 0, 0, comm[0], NULL));
    REFUSED(arg, "sigIdx", ncclSignal(1, 9, 0, 0, comm[0], NULL));
    REFUSED(arg, "flags", ncclSignal(1, 0, 0, 4, comm[0], NULL));
    REFUSED(arg, "nDesc", ncclWaitSignal(-1, &wait, comm[0], NULL));
    REFUSED(arg, "signalDescs", ncclWaitSignal(1, NULL, comm[0], NULL));
    wait.peer = N;
    REFUSED(arg, "[0].peer", ncclWaitSignal(1, &wait, comm[0], NULL));
    wait.peer = 1, wait.sigIdx = 8;
    REFUSED(arg, "[0].sigIdx", ncclWaitSignal(1, &wait, comm[0], NULL));
    wait.sigIdx = 0, wait.opCnt = -1;
    REFUSED(arg, "[0].opCnt", ncclWaitSignal(1, &wait, comm[0], NULL));
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        OK(ncclCommWindowRegister(comm[r], local[r], sizeof local[r], &plain[r], NCCL_WIN_DEFAULT));
    OK(ncclGroupEnd());
    REFUSED(arg, "NCCL_WIN_COLL_SYMMETRIC", PUT(local, 1, 1, plain[0], 0, 0, 0, 0));
    for (int r = 0; r < N; r++) OK(ncclCommWindowDeregister(comm[r], plain[r]));
}

/* Several windows of each rank in one group: all ranks register them in the order of the calls. */
static void several_windows(void) {
    static int memory[N][6][100];
    ncclWindow_t many[N][6];
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
        for (int w = 0; w < 6; w++)
            OK(ncclCommWindowRegister(comm[r], memory[r][w], 4 * (50 + (size_t)w), &many[r][w], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclGroupEnd());
    for (int w = 0; w < 6; w++) {
        local[0][0] = 70 + w;
        OK(ncclPutSignal(local[0], 1, ncclInt, 3, many[0][w], 4 * (49 + (size_t)w), 0, 0, 0, comm[0], NULL));
    }
    OK(ncclWaitSignal(1, &(ncclWaitSignalDesc_t){6, 0, 0, 0}, comm[3], NULL));
    for (int w = 0; w < 6; w++) CHECK(memory[3][w][49 + w] == 70 + w);
    for (int w = 0; w < 6; w++)
        for (int r = 0; r < N; r++) OK(ncclCommWindowDeregister(comm[r], many[r][w]));
}

/* A wait is over when its signal has come: its rank's, of its number and context, as often as was said. */
static void apart(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclResult_t state;
    config.numRmaCtx = 3;
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < N; r++) ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm[r], N, id, r, &config));
    for (int r = 0; r < N; r++) CHECK(settled(comm[r]) == ncclSuccess);
    for (int r = 0; r < N; r++)
        ANSWERS(ncclInProgress, ncclCommWindowRegister(comm[r], local[r], sizeof local[r], &window[r], NCCL_WIN_COLL_SYMMETRIC));
    for (int r = 0; r < N; r++) CHECK(settled(comm[r]) == ncclSuccess);
    ANSWERS(ncclInProgress, ncclWaitSignal(1, &(ncclWaitSignalDesc_t){2, 1, 3, 1}, comm[0], NULL));
    struct { int from, sig, ctx; } others[] = {{2, 3, 1}, {1, 4, 1}, {1, 3, 0}, {1, 3, 2}, {1, 3, 1}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        int from = others[i].from;
        ncclResult_t sent = ncclSignal(0, others[i].sig, others[i].ctx, 0, comm[from], NULL);
        CHECK(sent == ncclSuccess || sent == ncclInProgress);
        CHECK(settled(comm[from]) == ncclSuccess);
        for (int k = 0; k < 2000; k++) {
            OK(ncclCommGetAsyncError(comm[0], &state));
            if (state != ncclInProgress) FAIL("signal %d of rank %d, context %d is another", others[i].sig, from, others[i].ctx);
        }
    }
    CHECK(ncclSignal(0, 3, 1, 0, comm[1], NULL) != ncclInvalidArgument);
    CHECK(settled(comm[0]) == ncclSuccess);
    for (int r = 0; r < N; r++) OK(ncclCommWindowDeregister(comm[r], window[r]));
    for (int r = 0; r < N; r++) OK(ncclCommDestroy(comm[r]));
}

int main(void) {
    apart();
    for (int contexts = 1; contexts <= 2; contexts++) {
        make(contexts);
        for (int ctx = 0; ctx < contexts; ctx++) ring(ctx);
        without_the_peer();
        beside_calls();
        several_windows();
        wrong();
        end();
    }
    puts("passed");
    return 0;
}
