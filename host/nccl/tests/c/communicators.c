/* Making communicators in every way, in groups, threads and without blocking; splitting, shrinking and growing them. */
#include <pthread.h>
#include <time.h>
#include "test.h"

/* That the ranks of a communicator, which are in this thread, sum as they should. */
static void works(int n, ncclComm_t* comm) {
    long x[MOST], y[MOST], want = 0;
    for (int r = 0; r < n; r++) x[r] = 1 << r, want += 1 << r, y[r] = -1;
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++) OK(ncclAllReduce(&x[r], &y[r], 1, ncclInt64, ncclSum, comm[r], NULL));
    ncclResult_t end = ncclGroupEnd();
    CHECK(end == ncclSuccess || end == ncclInProgress);
    for (int r = 0; r < n; r++) {
        int rank, count;
        CHECK(settled(comm[r]) == ncclSuccess);
        OK(ncclCommUserRank(comm[r], &rank));
        OK(ncclCommCount(comm[r], &count));
        if (rank != r || count != n) FAIL("rank %d of %d is rank %d of %d", r, n, rank, count);
        if (y[r] != want) FAIL("rank %d of %d: %ld, not %ld", r, n, y[r], want);
    }
}

static void destroy(int n, ncclComm_t* comm) {
    for (int r = 0; r < n; r++) OK(ncclCommDestroy(comm[r]));
}

/* Several ranks of one thread, by an id. */
static void in_a_group(void) {
    for (int n = 1; n <= 5; n++) {
        ncclUniqueId id, ids[3];
        ncclComm_t comm[MOST];
        OK(ncclGetUniqueId(&id));
        OK(ncclGroupStart());
        for (int r = 0; r < n; r++) OK(ncclCommInitRank(&comm[r], n, id, r));
        OK(ncclGroupEnd());
        works(n, comm);
        destroy(n, comm);
        for (int i = 0; i < 3; i++) OK(ncclGetUniqueId(&ids[i]));
        OK(ncclGroupStart());
        for (int r = 0; r < n; r++) OK(ncclCommInitRankScalable(&comm[r], n, r, n < 3 ? 1 : 3, ids, NULL));
        OK(ncclGroupEnd());
        works(n, comm);
        destroy(n, comm);
    }
}

/* What the group's end refuses leaves no handles. */
static void a_group_that_fails(void) {
    ncclUniqueId id;
    ncclComm_t comm[2] = {(ncclComm_t)1, (ncclComm_t)1}, wrong = NULL;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm[0], 2, id, 0));
    CHECK(comm[0] != NULL);
    ANSWERS(ncclInvalidArgument, ncclCommInitRank(&wrong, 2, id, 2));
    ANSWERS(ncclInvalidArgument, ncclGroupEnd());
    CHECK(comm[0] == NULL && wrong == NULL);
    /* A call of a communicator that is not made yet. */
    float x = 1;
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm[0], 1, id, 0));
    REFUSED(ncclInvalidArgument, "not made yet", ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm[0], NULL));
    ANSWERS(ncclInvalidArgument, ncclGroupEnd());
}

struct member { ncclUniqueId id; int rank, n; };

static void* member(void* argument) {
    struct member* me = argument;
    ncclComm_t comm, half;
    enum { CALLS = 50, COUNT = 333 };
    static __thread int in[COUNT], out[COUNT];
    OK(ncclCommInitRank(&comm, me->n, me->id, me->rank));
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < COUNT; i++) in[i] = me->rank + i + call;
        OK(ncclAllReduce(in, out, COUNT, ncclInt, ncclMax, comm, NULL));
        for (int i = 0; i < COUNT; i++) CHECK(out[i] == me->n - 1 + i + call);
        /* An exchange with every other rank. */
        OK(ncclGroupStart());
        for (int peer = 0; peer < me->n; peer++) {
            OK(ncclSend(&in[peer], 1, ncclInt, peer, comm, NULL));
            OK(ncclRecv(&out[peer], 1, ncclInt, peer, comm, NULL));
        }
        OK(ncclGroupEnd());
        for (int peer = 0; peer < me->n; peer++) CHECK(out[peer] == peer + me->rank + call);
    }
    OK(ncclCommSplit(comm, me->rank % 2, -me->rank, &half, NULL));
    int rank, count, members = (me->n + 1 - me->rank % 2) / 2;
    OK(ncclCommUserRank(half, &rank));
    OK(ncclCommCount(half, &count));
    CHECK(count == members && rank == members - 1 - me->rank / 2);
    /* Calls of two communicators in one group. */
    int one = 1, here = 0, all = 0;
    OK(ncclGroupStart());
    OK(ncclAllReduce(&one, &here, 1, ncclInt, ncclSum, half, NULL));
    OK(ncclAllReduce(&one, &all, 1, ncclInt, ncclSum, comm, NULL));
    OK(ncclGroupEnd());
    CHECK(here == members && all == me->n);
    OK(ncclCommDestroy(half));
    OK(ncclCommFinalize(comm));
    OK(ncclCommDestroy(comm));
    return NULL;
}

static void in_threads(void) {
    for (int n = 2; n <= 5; n++) {
        pthread_t thread[MOST];
        struct member members[MOST];
        ncclUniqueId id;
        OK(ncclGetUniqueId(&id));
        for (int r = 0; r < n; r++) {
            members[r] = (struct member){id, r, n};
            CHECK(!pthread_create(&thread[r], NULL, member, &members[r]));
        }
        for (int r = 0; r < n; r++) CHECK(!pthread_join(thread[r], NULL));
    }
}

static void split(ncclComm_t* comm, int n) {
    ncclComm_t child[MOST], first[MOST], second[MOST];
    int firsts = 0, seconds = 0;
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++)
        OK(ncclCommSplit(comm[r], r == n - 1 ? NCCL_SPLIT_NOCOLOR : r % 2, -r, &child[r], NULL));
    OK(ncclGroupEnd());
    CHECK(child[n - 1] == NULL);
    for (int r = n - 2; r >= 0; r--) /* by key */
        if (r % 2) second[seconds++] = child[r];
        else first[firsts++] = child[r];
    works(firsts, first);
    works(seconds, second);
    works(n, comm);
    destroy(firsts, first);
    destroy(seconds, second);
}

static uint64_t bytes(ncclComm_t comm, ncclCommMemStat_t stat) {
    uint64_t value = UINT64_MAX;
    OK(ncclCommMemStats(comm, stat, &value));
    return value;
}

/* All ranks, with the answer that each call gives, and the group. */
static void together(int n, ncclComm_t* comm, int resume, ncclResult_t want) {
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++) OK(resume ? ncclCommResume(comm[r]) : ncclCommSuspend(comm[r], NCCL_SUSPEND_MEM));
    ncclResult_t end = ncclGroupEnd();
    CHECK(end == want || end == ncclInProgress);
    for (int r = 0; r < n && want == ncclSuccess; r++) CHECK(settled(comm[r]) == ncclSuccess);
}

/* Memory goes and comes again; in between calls are refused, and what the communicator is can be asked. */
static void suspend(ncclComm_t* comm, int n) {
    float x = 1;
    for (int round = 0; round < 2; round++) {
        uint64_t before = bytes(comm[0], ncclStatGpuMemSuspend);
        CHECK(before > 0 && bytes(comm[0], ncclStatGpuMemPersist) == 0);
        CHECK(bytes(comm[0], ncclStatGpuMemTotal) == before && bytes(comm[0], ncclStatGpuMemSuspended) == 0);
        together(n, comm, 0, ncclSuccess);
        for (int r = 0; r < n; r++) {
            int rank, count;
            CHECK(bytes(comm[r], ncclStatGpuMemTotal) == 0 && bytes(comm[r], ncclStatGpuMemSuspend) == 0);
            CHECK(bytes(comm[r], ncclStatGpuMemSuspended) == 1);
            OK(ncclCommUserRank(comm[r], &rank));
            OK(ncclCommCount(comm[r], &count));
            CHECK(rank == r && count == n);
            REFUSED(ncclInvalidUsage, "is suspended", ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm[r], NULL));
            REFUSED(ncclInvalidUsage, "is suspended", ncclCommSuspend(comm[r], NCCL_SUSPEND_MEM));
            REFUSED(ncclInvalidUsage, "is suspended", ncclCommFinalize(comm[r]));
        }
        together(n, comm, 1, ncclSuccess);
        for (int r = 0; r < n; r++) REFUSED(ncclInvalidUsage, "not suspended", ncclCommResume(comm[r]));
        CHECK(bytes(comm[0], ncclStatGpuMemSuspend) > 0 && bytes(comm[0], ncclStatGpuMemSuspended) == 0);
        works(n, comm);
    }
}

/* A window keeps all ranks from it, and what one-sided calls have does not. */
static void suspend_with_windows(void) {
    enum { N = 3 };
    ncclComm_t comm[N];
    ncclWindow_t window[N];
    float* buffer[N];
    OK(ncclCommInitAll(comm, N, NULL));
    for (int round = 0; round < 2; round++) {
        OK(ncclGroupStart());
        for (int r = 0; r < N; r++) {
            OK(ncclMemAlloc((void**)&buffer[r], 4096));
            OK(ncclCommWindowRegister(comm[r], buffer[r], 4096, &window[r], NCCL_WIN_COLL_SYMMETRIC));
        }
        OK(ncclGroupEnd());
        CHECK(bytes(comm[1], ncclStatGpuMemPersist) > 0);
        together(N, comm, 0, ncclInvalidUsage);
        CHECK(strstr(ncclGetLastError(NULL), "a window is registered"));
        works(N, comm);
        for (int r = 0; r < N; r++) {
            OK(ncclCommWindowDeregister(comm[r], window[r]));
            OK(ncclMemFree(buffer[r]));
        }
        together(N, comm, 0, ncclSuccess);
        together(N, comm, 1, ncclSuccess);
        works(N, comm);
    }
    /* One that is suspended can be destroyed, and aborted. */
    together(N, comm, 0, ncclSuccess);
    OK(ncclCommAbort(comm[0]));
    for (int r = 1; r < N; r++) OK(ncclCommDestroy(comm[r]));
}

static void shrink(ncclComm_t* comm, int n, int flags) {
    ncclComm_t left[MOST];
    int gone[] = {1};
    OK(ncclGroupStart());
    for (int r = 0, l = 0; r < n; r++)
        if (r != 1) OK(ncclCommShrink(comm[r], gone, 1, &left[l++], NULL, flags));
    OK(ncclGroupEnd());
    works(n - 1, left);
    destroy(n - 1, left);
}

static void grow(ncclComm_t* comm, int n) {
    ncclComm_t grown[MOST];
    ncclUniqueId id, other;
    OK(ncclCommGetUniqueId(comm[1], &id));
    REFUSED(ncclInvalidUsage, "id already", ncclCommGetUniqueId(comm[1], &other));
    REFUSED(ncclInvalidArgument, "uniqueId", ncclCommGrow(comm[1], n + 2, NULL, -1, &grown[0], NULL));
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++) OK(ncclCommGrow(comm[r], n + 2, r == 1 ? &id : NULL, -1, &grown[r], NULL));
    for (int r = n; r < n + 2; r++) OK(ncclCommGrow(NULL, n + 2, &id, r, &grown[r], NULL));
    OK(ncclGroupEnd());
    works(n + 2, grown);
    destroy(n + 2, grown);
    works(n, comm);
}

static void children(void) {
    ncclUniqueId id;
    ncclComm_t comm[MOST];
    int n = 4;
    for (int by_id = 0; by_id < 2; by_id++) {
        if (by_id) {
            OK(ncclGetUniqueId(&id));
            OK(ncclGroupStart());
            for (int r = 0; r < n; r++) OK(ncclCommInitRank(&comm[r], n, id, r));
            OK(ncclGroupEnd());
        } else {
            OK(ncclCommInitAll(comm, n, NULL));
        }
        split(comm, n);
        suspend(comm, n);
        shrink(comm, n, NCCL_SHRINK_DEFAULT);
        works(n, comm);
        grow(comm, n);
        grow(comm, n); /* with another id */
        shrink(comm, n, NCCL_SHRINK_ABORT);
        float x = 1;
        CHECK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm[0], NULL) != ncclSuccess);
        destroy(n, comm);
    }
}

static void revoked(void) {
    ncclComm_t comm[3], child[3];
    float x = 1;
    ncclResult_t state;
    OK(ncclCommInitAll(comm, 3, NULL));
    OK(ncclCommRevoke(comm[2], NCCL_REVOKE_DEFAULT));
    for (int r = 0; r < 3; r++) {
        REFUSED(ncclInvalidUsage, "revoked", ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm[r], NULL));
        OK(ncclCommGetAsyncError(comm[r], &state));
        CHECK(state == ncclSuccess);
    }
    OK(ncclGroupStart());
    for (int r = 0; r < 2; r++) OK(ncclCommShrink(comm[r], (int[]){2}, 1, &child[r], NULL, NCCL_SHRINK_DEFAULT));
    OK(ncclGroupEnd());
    works(2, child);
    destroy(2, child);
    destroy(3, comm);
}

static void nonblocking(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, blocking = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm[MOST], child[MOST], alone;
    int n = 3, count;
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    /* Without a group: each returns at once, though the others are not there. */
    ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm[0], n, id, 0, &config));
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comm[0], &state));
    CHECK(state == ncclInProgress);
    REFUSED(ncclInvalidArgument, "in progress", ncclCommCount(comm[0], &count));
    REFUSED(ncclInvalidArgument, "in progress", ncclCommDestroy(comm[0]));
    REFUSED(ncclInvalidArgument, "in progress", ncclAllReduce(&n, &n, 1, ncclInt, ncclSum, comm[0], NULL));
    for (int r = 1; r < n; r++) ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm[r], n, id, r, &config));
    for (int r = 0; r < n; r++) CHECK(settled(comm[r]) == ncclSuccess);
    for (int i = 0; i < 20; i++) works(n, comm);
    /* A call that waits for another rank returns, too, and is over when that has called. (A send of so little may be over at once.) */
    float x[2] = {1, 2}, y[2] = {0, 0};
    ANSWERS(ncclInProgress, ncclRecv(&y[1], 1, ncclFloat, 0, comm[1], NULL));
    CHECK(ncclSend(&x[0], 1, ncclFloat, 1, comm[0], NULL) != ncclInvalidArgument);
    CHECK(settled(comm[0]) == ncclSuccess && settled(comm[1]) == ncclSuccess && y[1] == 1);
    /* A group of both kinds. */
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRankConfig(&alone, 1, id, 0, &blocking));
    OK(ncclGroupStart());
    OK(ncclAllReduce(&x[0], &y[0], 1, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ncclInvalidArgument, "blocking", ncclAllReduce(&x[1], &y[1], 1, ncclFloat, ncclSum, alone, NULL));
    ANSWERS(ncclInvalidArgument, ncclGroupEnd());
    OK(ncclCommDestroy(alone));
    /* Children inherit it; both are in progress meanwhile. */
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++) OK(ncclCommSplit(comm[r], r ? 0 : NCCL_SPLIT_NOCOLOR, 0, &child[r], NULL));
    ANSWERS(ncclInProgress, ncclGroupEnd());
    CHECK(child[0] == NULL && child[1] && child[2]);
    for (int r = 0; r < n; r++) CHECK(settled(comm[r]) == ncclSuccess);
    for (int r = 1; r < n; r++) CHECK(settled(child[r]) == ncclSuccess);
    works(n - 1, child + 1);
    destroy(n - 1, child + 1);
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++) OK(ncclCommFinalize(comm[r]));
    ANSWERS(ncclInProgress, ncclGroupEnd());
    for (int r = 0; r < n; r++) CHECK(settled(comm[r]) == ncclSuccess);
    destroy(n, comm);
}

static void* abort_it(void* comm) {
    struct timespec time = {0, 50 * 1000 * 1000};
    nanosleep(&time, NULL);
    OK(ncclCommAbort((ncclComm_t)comm));
    return NULL;
}

/* What waits for a rank that never comes is ended from another thread, or by whoever has started it. */
static void aborted(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm[2];
    ncclResult_t state;
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm[0], 2, id, 0, &config));
    OK(ncclCommAbort(comm[0]));
    ANSWERS(ncclInvalidArgument, ncclCommGetAsyncError(comm[0], &state));
    /* A call of a blocking one. */
    pthread_t thread;
    float x = 1, y = 0;
    OK(ncclCommInitAll(comm, 2, NULL));
    CHECK(!pthread_create(&thread, NULL, abort_it, comm[0]));
    ncclResult_t result = ncclAllReduce(&x, &y, 1, ncclFloat, ncclSum, comm[0], NULL);
    CHECK(result != ncclSuccess && result != ncclInProgress);
    CHECK(!pthread_join(thread, NULL));
    OK(ncclCommGetAsyncError(comm[1], &state));
    CHECK(state == ncclRemoteError);
    OK(ncclCommAbort(comm[1]));
}

/* An id of which the rendezvous fails is an error of the communicator, which can be destroyed. */
static void a_failure_in_the_background(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm[2];
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    /* The two do not agree on their number: who comes second is turned away. */
    ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm[0], 2, id, 0, &config));
    ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm[1], 3, id, 1, &config));
    ncclResult_t state[2];
    int second;
    do {
        for (int r = 0; r < 2; r++) OK(ncclCommGetAsyncError(comm[r], &state[r]));
        second = state[1] != ncclInProgress;
    } while (state[0] == ncclInProgress && state[1] == ncclInProgress);
    CHECK(state[second] == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm[second]), "turned this rank away"));
    CHECK(ncclAllReduce(state, state, 1, ncclInt, ncclSum, comm[second], NULL) == ncclInvalidUsage);
    OK(ncclCommDestroy(comm[second]));
    OK(ncclCommAbort(comm[1 - second]));
}

int main(void) {
    in_a_group();
    a_group_that_fails();
    in_threads();
    children();
    suspend_with_windows();
    revoked();
    nonblocking();
    aborted();
    a_failure_in_the_background();
    puts("passed");
    return 0;
}
