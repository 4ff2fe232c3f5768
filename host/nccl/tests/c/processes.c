/* Ranks in processes of their own. The program starts itself, once for each rank, and gives the id by a file.
 *
 * A last argument of "die" has the last rank end in the middle: the others learn of it, and go on without it. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

static void rank_of(int rank, int n, const char* path, int dies) {
    ncclUniqueId id;
    ncclComm_t comm, child;
    FILE* file = fopen(path, "rb");
    CHECK(file && fread(&id, sizeof id, 1, file) == 1);
    fclose(file);
    OK(ncclCommInitRank(&comm, n, id, rank));
    for (size_t count = 1; count < 100000; count = count * 3 + 1) {
        int* x = room(count * sizeof *x);
        for (size_t i = 0; i < count; i++) x[i] = rank + (int)i;
        OK(ncclAllReduce(x, x, count, ncclInt, ncclSum, comm, NULL));
        for (size_t i = 0; i < count; i++) CHECK(x[i] == n * (n - 1) / 2 + n * (int)i);
        free(x);
    }
    /* A window whose memory the processes share, and one that they do not. */
    int* shared;
    int* own = room(4096 * sizeof *own);
    ncclWindow_t windows[2];
    OK(ncclMemAlloc((void**)&shared, 4096 * sizeof *shared));
    OK(ncclCommWindowRegister(comm, shared, 4096 * sizeof *shared, &windows[0], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclCommWindowRegister(comm, own, 4096 * sizeof *own, &windows[1], NCCL_WIN_COLL_SYMMETRIC));
    for (int which = 0; which < 2; which++) {
        int* x = which ? own : shared;
        for (int i = 0; i < 4096; i++) x[i] = rank * i;
        OK(ncclAllReduce(x + 3, x + 3, 4001, ncclInt, ncclSum, comm, NULL));
        for (int i = 3; i < 4004; i++) CHECK(x[i] == n * (n - 1) / 2 * i);
        CHECK(x[4004] == rank * 4004);
    }
    /* Each puts into the next one's window, out of its own: over shared memory or a network. */
    int next = (rank + 1) % n, before = (rank + n - 1) % n;
    for (int turn = 0; turn < 30; turn++) {
        size_t count = 1 + (size_t)draw(900), from = (size_t)draw(1000), to = 2000 + (size_t)draw(1000);
        ncclWaitSignalDesc_t wait = {1, before, turn % 8, 0}, told = {1, next, (turn + 1) % 8, 0};
        for (size_t i = 0; i < count; i++) shared[from + i] = turn * 5 + rank * 1000 + (int)i;
        OK(ncclPutSignal(shared + from, count, ncclInt, next, windows[0], to * sizeof(int), turn % 8, 0, 0, comm, NULL));
        OK(ncclWaitSignal(1, &wait, comm, NULL));
        for (size_t i = 0; i < count; i++) CHECK(shared[to + i] == turn * 5 + before * 1000 + (int)i);
        /* It has been read: the one before may write again. */
        OK(ncclSignal(before, (turn + 1) % 8, 0, 0, comm, NULL));
        OK(ncclWaitSignal(1, &told, comm, NULL));
    }
    for (int which = 0; which < 2; which++) OK(ncclCommWindowDeregister(comm, windows[which]));
    OK(ncclMemFree(shared));
    free(own);
    OK(ncclCommSplit(comm, rank % 2, rank, &child, NULL));
    int mine = rank, most = -1;
    OK(ncclAllReduce(&mine, &most, 1, ncclInt, ncclMax, child, NULL));
    CHECK(most == (rank % 2 == (n - 1) % 2 ? n - 1 : n - 2));
    OK(ncclCommDestroy(child));
    if (dies) {
        if (rank == n - 1) kill(getpid(), SIGKILL);
        ncclResult_t result = ncclAllReduce(&mine, &most, 1, ncclInt, ncclMax, comm, NULL), state;
        if (result != ncclRemoteError) FAIL("a lost rank: %d", result);
        OK(ncclCommGetAsyncError(comm, &state));
        CHECK(state == ncclRemoteError);
        OK(ncclCommShrink(comm, (int[]){n - 1}, 1, &child, NULL, NCCL_SHRINK_ABORT));
        OK(ncclCommDestroy(comm));
        comm = child;
        OK(ncclAllReduce(&mine, &most, 1, ncclInt, ncclMax, comm, NULL));
        CHECK(most == n - 2);
    }
    OK(ncclCommFinalize(comm));
    OK(ncclCommDestroy(comm));
}

int main(int count, char** argument) {
    if (count == 5) {
        rank_of(atoi(argument[1]), atoi(argument[2]), argument[3], !strcmp(argument[4], "die"));
        return 0;
    }
    int n = 3, dies = count > 1;
    char path[] = "id.XXXXXX", number[16], ranks[16];
    int file = mkstemp(path);
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    CHECK(file >= 0 && write(file, &id, sizeof id) == sizeof id);
    close(file);
    pid_t child[MOST];
    snprintf(ranks, sizeof ranks, "%d", n);
    for (int r = 0; r < n; r++) {
        snprintf(number, sizeof number, "%d", r);
        child[r] = fork();
        CHECK(child[r] >= 0);
        if (child[r] == 0) {
            execl("/proc/self/exe", argument[0], number, ranks, path, dies ? "die" : "live", (char*)NULL);
            _exit(9);
        }
    }
    for (int r = 0; r < n; r++) {
        int status;
        CHECK(waitpid(child[r], &status, 0) == child[r]);
        if (dies && r == n - 1) CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    unlink(path);
    puts("passed");
    return 0;
}
