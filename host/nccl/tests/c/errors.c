/* What is wrong is refused, with the name of the argument; nothing of it crashes. */
#include "test.h"

#define ARG ncclInvalidArgument
static ncclComm_t comm[2];
static float a[64], b[64];

static void null_pointers(void) {
    ncclUniqueId id;
    ncclComm_t none;
    OK(ncclGetUniqueId(&id));
    REFUSED(ARG, "version", ncclGetVersion(NULL));
    REFUSED(ARG, "uniqueId", ncclGetUniqueId(NULL));
    REFUSED(ARG, "comm: is NULL", ncclCommInitRank(NULL, 1, id, 0));
    REFUSED(ARG, "newcomm", ncclCommInitRankScalable(NULL, 1, 0, 1, &id, NULL));
    REFUSED(ARG, "commIds", ncclCommInitRankScalable(&none, 1, 0, 1, NULL, NULL));
    REFUSED(ARG, "comm: is NULL", ncclCommInitAll(NULL, 1, NULL));
    REFUSED(ARG, "comm: is NULL", ncclAllReduce(a, a, 1, ncclFloat, ncclSum, NULL, NULL));
    REFUSED(ARG, "comm: is NULL", ncclCommCount(NULL, NULL));
    REFUSED(ARG, "count: is NULL", ncclCommCount(comm[0], NULL));
    REFUSED(ARG, "rank: is NULL", ncclCommUserRank(comm[0], NULL));
    REFUSED(ARG, "device: is NULL", ncclCommCuDevice(comm[0], NULL));
    REFUSED(ARG, "asyncError: is NULL", ncclCommGetAsyncError(comm[0], NULL));
    REFUSED(ARG, "newcomm", ncclCommSplit(comm[0], 0, 0, NULL, NULL));
    REFUSED(ARG, "newcomm", ncclCommShrink(comm[0], (int[]){1}, 1, NULL, NULL, 0));
    REFUSED(ARG, "excludeRanksList", ncclCommShrink(comm[0], NULL, 1, &none, NULL, 0));
    REFUSED(ARG, "sendbuff: is NULL", ncclAllReduce(NULL, b, 1, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ARG, "recvbuff: is NULL", ncclAllReduce(a, NULL, 1, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ARG, "recvbuff: is NULL", ncclReduce(a, NULL, 1, ncclFloat, ncclSum, 0, comm[0], NULL));
    REFUSED(ARG, "sendbuff: is NULL", ncclBroadcast(NULL, b, 1, ncclFloat, 0, comm[0], NULL));
    REFUSED(ARG, "buff: is NULL", ncclBcast(NULL, 1, ncclFloat, 1, comm[0], NULL));
    REFUSED(ARG, "sendbuff: is NULL", ncclScatter(NULL, b, 1, ncclFloat, 0, comm[0], NULL));
    REFUSED(ARG, "recvbuff: is NULL", ncclGather(a, NULL, 1, ncclFloat, 0, comm[0], NULL));
    REFUSED(ARG, "sendbuff: is NULL", ncclSend(NULL, 1, ncclFloat, 1, comm[0], NULL));
    REFUSED(ARG, "recvbuff: is NULL", ncclRecv(NULL, 1, ncclFloat, 1, comm[0], NULL));
    REFUSED(ARG, "ptr: is NULL", ncclMemAlloc(NULL, 1));
    /* As NCCL: nothing to do. */
    OK(ncclMemFree(NULL));
    OK(ncclCommDestroy(NULL));
    OK(ncclCommAbort(NULL));
    OK(ncclCommFinalize(NULL));
}

static void numbers(void) {
    ncclUniqueId id, zero;
    ncclComm_t none;
    OK(ncclGetUniqueId(&id));
    memset(&zero, 0, sizeof zero);
    REFUSED(ARG, "nranks", ncclCommInitRank(&none, 0, id, 0));
    REFUSED(ARG, "nranks", ncclCommInitRank(&none, -1, id, 0));
    REFUSED(ARG, "rank: 2", ncclCommInitRank(&none, 2, id, 2));
    REFUSED(ARG, "rank: -1", ncclCommInitRank(&none, 2, id, -1));
    REFUSED(ARG, "commId", ncclCommInitRank(&none, 1, zero, 0));
    REFUSED(ARG, "myrank", ncclCommInitRankScalable(&none, 2, 2, 1, &id, NULL));
    REFUSED(ARG, "nId", ncclCommInitRankScalable(&none, 1, 0, 0, &id, NULL));
    REFUSED(ARG, "nId", ncclCommInitRankScalable(&none, 1, 0, 2, &id, NULL));
    REFUSED(ARG, "ndev", ncclCommInitAll(&none, 0, NULL));
    REFUSED(ARG, "ndev", ncclCommInitAll(&none, INT_MAX, NULL));
    REFUSED(ARG, "devlist", ncclCommInitAll(&none, 1, (int[]){-1}));
    for (int bad = -1; bad < 1000; bad += 13 + 988 * (bad == 12)) {
        if (bad >= 0 && bad < ncclNumTypes) continue;
        REFUSED(ARG, "datatype", ncclAllReduce(a, b, 1, (ncclDataType_t)bad, ncclSum, comm[0], NULL));
        REFUSED(ARG, "datatype", ncclSend(a, 1, (ncclDataType_t)bad, 1, comm[0], NULL));
    }
    REFUSED(ARG, "datatype", ncclAllGather(a, b, 1, ncclNumTypes, comm[0], NULL));
    REFUSED(ARG, "op", ncclAllReduce(a, b, 1, ncclFloat, ncclNumOps, comm[0], NULL));
    REFUSED(ARG, "op", ncclAllReduce(a, b, 1, ncclFloat, (ncclRedOp_t)-1, comm[0], NULL));
    REFUSED(ARG, "op", ncclAllReduce(a, b, 1, ncclFloat, ncclMaxRedOp, comm[0], NULL));
    REFUSED(ARG, "root", ncclBroadcast(a, b, 1, ncclFloat, 2, comm[0], NULL));
    REFUSED(ARG, "root", ncclReduce(a, b, 1, ncclFloat, ncclSum, -1, comm[0], NULL));
    REFUSED(ARG, "root", ncclGather(a, b, 1, ncclFloat, 7, comm[0], NULL));
    REFUSED(ARG, "root", ncclScatter(a, b, 1, ncclFloat, INT_MIN, comm[0], NULL));
    REFUSED(ARG, "peer", ncclSend(a, 1, ncclFloat, 2, comm[0], NULL));
    REFUSED(ARG, "peer", ncclRecv(b, 1, ncclFloat, -1, comm[0], NULL));
    /* Counts whose bytes do not fit a size, also when multiplied by the ranks. */
    REFUSED(ARG, "sendbuff", ncclAllReduce(a, b, SIZE_MAX / 2, ncclDouble, ncclSum, comm[0], NULL));
    REFUSED(ARG, "buff", ncclAllReduce(a, b, SIZE_MAX / 4, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ARG, "recvcount", ncclReduceScatter(a, b, SIZE_MAX, ncclInt8, ncclSum, comm[0], NULL));
    REFUSED(ARG, "sendcount", ncclAllGather(a, b, SIZE_MAX / 2 + 1, ncclInt8, comm[0], NULL));
    /* Buffers that overlap without being the same; one whose elements are not aligned. */
    REFUSED(ARG, "recvbuff", ncclAllReduce(a, a + 1, 8, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ARG, "recvbuff", ncclAlltoAll(a, a, 4, ncclFloat, comm[0], NULL));
    REFUSED(ARG, "sendbuff", ncclAllReduce((char*)a + 2, b, 8, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ARG, "color", ncclCommSplit(comm[0], -7, 0, &none, NULL));
    REFUSED(ARG, "shrinkFlags", ncclCommShrink(comm[0], (int[]){1}, 1, &none, NULL, 9));
    REFUSED(ARG, "excludeRanksCount", ncclCommShrink(comm[0], (int[]){1}, 0, &none, NULL, 0));
    REFUSED(ARG, "excludeRanksCount", ncclCommShrink(comm[0], (int[]){1}, INT_MAX, &none, NULL, 0));
    REFUSED(ARG, "excludeRanksList", ncclCommShrink(comm[0], (int[]){2}, 1, &none, NULL, 0));
    REFUSED(ARG, "excludeRanksList", ncclCommShrink(comm[0], (int[]){0}, 1, &none, NULL, 0));
    CHECK(none == NULL);
    REFUSED(ARG, "excludeRanksCount", ncclCommShrink(comm[0], (int[]){1, 1}, 2, &none, NULL, 0));
    REFUSED(ARG, "rank", ncclCommGrow(comm[0], 3, NULL, 0, &none, NULL));
    REFUSED(ARG, "nRanks", ncclCommGrow(comm[0], 2, NULL, -1, &none, NULL));
    REFUSED(ARG, "uniqueId", ncclCommGrow(comm[0], 3, &id, -1, &none, NULL));
    REFUSED(ARG, "uniqueId", ncclCommGrow(NULL, 3, NULL, 2, &none, NULL));
    REFUSED(ARG, "revokeFlags", ncclCommRevoke(comm[0], 1));
    REFUSED(ARG, "flags", ncclCommSuspend(comm[0], 0));
    int word = 0;
    ncclRedOp_t op;
    REFUSED(ARG, "scalar", ncclRedOpCreatePreMulSum(&op, NULL, ncclInt, ncclScalarDevice, comm[0]));
    REFUSED(ARG, "residence", ncclRedOpCreatePreMulSum(&op, &word, ncclInt, (ncclScalarResidence_t)2, comm[0]));
    REFUSED(ARG, "datatype", ncclRedOpCreatePreMulSum(&op, &word, (ncclDataType_t)12, ncclScalarDevice, comm[0]));
    REFUSED(ARG, "op: is NULL", ncclRedOpCreatePreMulSum(NULL, &word, ncclInt, ncclScalarDevice, comm[0]));
    REFUSED(ARG, "built-in", ncclRedOpDestroy(ncclSum, comm[0]));
}

static void handles(void) {
    char fake[4096];
    int count;
    ncclResult_t state;
    memset(fake, 0x41, sizeof fake);
    ncclComm_t wrong[] = {(ncclComm_t)fake, (ncclComm_t)1, (ncclComm_t)-1, (ncclComm_t)(fake + 1), NULL};
    OK(ncclCommInitAll(&wrong[4], 1, NULL));
    OK(ncclCommDestroy(wrong[4]));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ncclComm_t bad = wrong[i], child;
        void* handle;
        ncclWindow_t window;
        ncclRedOp_t op;
        REFUSED(ARG, "comm", ncclCommCount(bad, &count));
        REFUSED(ARG, "comm", ncclCommDestroy(bad));
        REFUSED(ARG, "comm", ncclCommAbort(bad));
        REFUSED(ARG, "comm", ncclCommFinalize(bad));
        REFUSED(ARG, "comm", ncclCommRevoke(bad, 0));
        REFUSED(ARG, "comm", ncclCommGetAsyncError(bad, &state));
        REFUSED(ARG, "comm", ncclCommSplit(bad, 0, 0, &child, NULL));
        REFUSED(ARG, "comm", ncclCommShrink(bad, &count, 1, &child, NULL, 0));
        REFUSED(ARG, "comm", ncclCommGrow(bad, 9, NULL, -1, &child, NULL));
        REFUSED(ARG, "comm", ncclCommRegister(bad, a, 4, &handle));
        REFUSED(ARG, "comm", ncclCommWindowRegister(bad, a, 4, &window, 0));
        REFUSED(ARG, "comm", ncclRedOpCreatePreMulSum(&op, a, ncclFloat, ncclScalarDevice, bad));
        REFUSED(ARG, "comm", ncclAllReduce(a, b, 1, ncclFloat, ncclSum, bad, NULL));
        REFUSED(ARG, "comm", ncclSend(a, 1, ncclFloat, 0, bad, NULL));
        CHECK(strlen(ncclGetLastError(bad)) > 0);
    }
    REFUSED(ARG, "ptr", ncclMemFree(fake));
    REFUSED(ARG, "win", ncclCommWindowDeregister(comm[0], (ncclWindow_t)fake));
    REFUSED(ARG, "handle", ncclCommDeregister(comm[0], fake));
    /* A communicator's handle is no window's. */
    REFUSED(ARG, "win", ncclCommWindowDeregister(comm[0], (ncclWindow_t)comm[0]));
}

static ncclResult_t configured(ncclConfig_t config) {
    ncclUniqueId id;
    ncclComm_t made = (ncclComm_t)1;
    OK(ncclGetUniqueId(&id));
    ncclResult_t result = ncclCommInitRankConfig(&made, 1, id, 0, &config);
    if (result == ncclSuccess) OK(ncclCommDestroy(made));
    return result;
}

#define WITH(field, value) \
    ((config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER), (config.field = (value)), configured(config))

static void configs(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    OK(configured(config));
    REFUSED(ARG, "config", WITH(magic, 0));
    REFUSED(ARG, "blocking", WITH(blocking, 2));
    REFUSED(ARG, "blocking", WITH(blocking, -1));
    REFUSED(ARG, "cgaClusterSize", WITH(cgaClusterSize, -1));
    REFUSED(ARG, "minCTAs", WITH(minCTAs, 0));
    REFUSED(ARG, "maxCTAs", WITH(maxCTAs, -4));
    REFUSED(ARG, "splitShare", WITH(splitShare, 2));
    REFUSED(ARG, "trafficClass", WITH(trafficClass, -2));
    REFUSED(ARG, "collnetEnable", WITH(collnetEnable, 5));
    REFUSED(ARG, "CTAPolicy", WITH(CTAPolicy, 4));
    REFUSED(ARG, "shrinkShare", WITH(shrinkShare, 3));
    REFUSED(ARG, "nvlsCTAs", WITH(nvlsCTAs, 0));
    REFUSED(ARG, "graphUsageMode", WITH(graphUsageMode, 3));
    OK(WITH(blocking, 1));
    OK(WITH(maxCTAs, 64));
    OK(WITH(cgaClusterSize, 2));
    OK(WITH(commName, "a name"));
    REFUSED(ncclInvalidUsage, "netName", WITH(netName, "nosuch"));
    config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
    config.minCTAs = 4;
    config.maxCTAs = 2;
    REFUSED(ARG, "minCTAs", configured(config));
    /* An older program's: what it does not have, it has not set. */
    size_t sizes[] = {offsetof(ncclConfig_t, cgaClusterSize), offsetof(ncclConfig_t, splitShare),
                      offsetof(ncclConfig_t, collnetEnable), sizeof config};
    unsigned int versions[] = {21400, 21700, 22600, 23007};
    for (int i = 0; i < 4; i++) {
        config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
        memset((char*)&config + sizes[i], 0x77, sizeof config - sizes[i]);
        config.size = sizes[i];
        config.version = versions[i];
        OK(configured(config));
    }
    /* What its version does not know is not read, whatever its size. */
    config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
    config.version = 21400;
    config.splitShare = config.minCTAs = config.nvlsCTAs = -77;
    OK(configured(config));
    /* A newer program's may be longer. */
    struct { ncclConfig_t known; int later[9]; } longer = {NCCL_CONFIG_INITIALIZER, {9}};
    longer.known.size = sizeof longer;
    longer.known.version = 29900;
    OK(configured(longer.known));
}

/* Memory that is counted, of a communicator that is not suspended. */
static void memory(void) {
    uint64_t value = 9;
    REFUSED(ncclInvalidUsage, "not suspended", ncclCommResume(comm[0]));
    OK(ncclCommMemStats(comm[0], ncclStatGpuMemSuspended, &value));
    CHECK(value == 0);
    REFUSED(ARG, "stat", ncclCommMemStats(comm[0], (ncclCommMemStat_t)4, &value));
}

static void groups(void) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    REFUSED(ncclInvalidUsage, "ncclGroupStart", ncclGroupEnd());
    REFUSED(ncclInvalidUsage, "ncclGroupStart", ncclGroupSimulateEnd(&info));
    /* A call that is wrong spoils its group: what was right before it does not run. */
    memset(b, 0, sizeof b);
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 1, ncclFloat, ncclSum, comm[0], NULL));
    ANSWERS(ARG, ncclAllReduce(a, b, 1, ncclFloat, ncclNumOps, comm[1], NULL));
    REFUSED(ARG, "ncclAllReduce: invalid argument op", ncclGroupEnd());
    CHECK(b[0] == 0);
    /* So does an inner group's, and the next group is as good as ever. */
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    ANSWERS(ARG, ncclSend(a, 1, ncclFloat, 5, comm[0], NULL));
    OK(ncclGroupEnd());
    ANSWERS(ARG, ncclGroupEnd());
    float x[2] = {1, 2}, y[2];
    OK(ncclGroupStart());
    for (int r = 0; r < 2; r++) OK(ncclAllReduce(&x[r], &y[r], 1, ncclFloat, ncclSum, comm[r], NULL));
    OK(ncclGroupEnd());
    CHECK(y[0] == 3 && y[1] == 3);
    /* A message to itself without its counterpart. */
    REFUSED(ARG, "peer", ncclSend(a, 1, ncclFloat, 0, comm[0], NULL));
    /* A simulated group runs nothing. Larger calls take longer, one after the other longer than one. */
    float small, large, twice;
    memset(b, 0, sizeof b);
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 1, ncclFloat, ncclSum, comm[0], NULL));
    OK(ncclGroupSimulateEnd(&info));
    small = info.estimatedTime;
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 32, ncclFloat, ncclSum, comm[0], NULL));
    OK(ncclGroupSimulateEnd(&info));
    large = info.estimatedTime;
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 32, ncclFloat, ncclSum, comm[0], NULL));
    OK(ncclAllReduce(a, b, 32, ncclFloat, ncclSum, comm[0], NULL));
    OK(ncclSend(a, 1, ncclFloat, 1, comm[0], NULL));
    OK(ncclGroupSimulateEnd(&info));
    twice = info.estimatedTime;
    CHECK(small > 0 && large >= small && twice > 1.9f * large && twice < 2.1f * large && b[0] == 0);
    OK(ncclGroupStart());
    OK(ncclGroupSimulateEnd(&info));
    CHECK(info.estimatedTime == 0);
    OK(ncclGroupStart());
    ANSWERS(ARG, ncclSend(a, 1, ncclFloat, 5, comm[0], NULL));
    REFUSED(ARG, "peer", ncclGroupSimulateEnd(&info));
    info.size = 3;
    REFUSED(ARG, "simInfo", (ncclGroupStart(), ncclGroupSimulateEnd(&info)));
    info.size = sizeof info;
    info.magic = 3;
    REFUSED(ARG, "simInfo", (ncclGroupStart(), ncclGroupSimulateEnd(&info)));
}

/* Ranks that do not call the same are all told. The communicator has failed then, and says so. */
static void mismatch(void) {
    ncclComm_t two[2];
    ncclResult_t state;
    OK(ncclCommInitAll(two, 2, NULL));
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 8, ncclFloat, ncclSum, two[0], NULL));
    OK(ncclAllReduce(a + 32, b + 32, 9, ncclFloat, ncclSum, two[1], NULL));
    REFUSED(ncclInvalidUsage, "differs between ranks", ncclGroupEnd());
    OK(ncclCommGetAsyncError(two[0], &state));
    CHECK(state == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(two[1]), "differs between ranks"));
    CHECK(ncclAllReduce(a, b, 8, ncclFloat, ncclSum, two[0], NULL) != ncclSuccess);
    for (int r = 0; r < 2; r++) OK(ncclCommDestroy(two[r]));
}

int main(void) {
    CHECK(*ncclGetLastError(NULL) == 0);
    for (int i = -1; i < 12; i++) {
        const char* words = ncclGetErrorString((ncclResult_t)i);
        CHECK(words && *words && !strcmp(words, pncclGetErrorString((ncclResult_t)i)));
        CHECK((i < 0 || i > 8) == !strcmp(words, "unknown result code"));
    }
    CHECK(!strcmp(ncclGetErrorString(ncclSuccess), "no error"));
    OK(ncclCommInitAll(comm, 2, NULL));
    null_pointers();
    numbers();
    handles();
    configs();
    memory();
    groups();
    mismatch();
    /* After all that it is as good as ever. */
    a[0] = 1, a[1] = 2;
    OK(ncclGroupStart());
    for (int r = 0; r < 2; r++) OK(ncclAllReduce(&a[r], &b[r], 1, ncclFloat, ncclSum, comm[r], NULL));
    OK(ncclGroupEnd());
    CHECK(b[0] == 3 && b[1] == 3);
    for (int r = 0; r < 2; r++) OK(ncclCommFinalize(comm[r]));
    REFUSED(ARG, "finalized", ncclAllReduce(a, b, 1, ncclFloat, ncclSum, comm[0], NULL));
    REFUSED(ARG, "finalized", ncclCommFinalize(comm[0]));
    for (int r = 0; r < 2; r++) OK(ncclCommDestroy(comm[r]));
    puts("passed");
    return 0;
}
