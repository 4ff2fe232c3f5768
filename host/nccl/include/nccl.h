/* nccl.h: the C interface of NCCL 2.30, as FerroCCL's libnccl.so.2 has it.
 *
 * Names, values and layouts are NCCL's, so that programs made for NCCL compile and run. docs/nccl.md says how to use it, and
 * function by function what differs. NCCL's interface for kernels (nccl_device.h) is not there.
 *
 * Where the CUDA toolkit's headers are found they are included, as programs expect; elsewhere, or with NCCL_WITHOUT_CUDA
 * defined, a stream is an opaque pointer.
 *
 * Every function has a twin whose name begins with pnccl: a tool that puts itself before a function calls that.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(NCCL_WITHOUT_CUDA) && defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#define NCCL_HAS_CUDA_HEADERS 1
#endif
#endif
#ifdef NCCL_HAS_CUDA_HEADERS
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#else
typedef struct CUstream_st* cudaStream_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23007
/* The code of a version: until 2.8 it had a digit less. */
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles, results ------------------------------------------------------------------------------------------------ */

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct ncclParamHandle* ncclParamHandle_t;
#define NCCL_COMM_NULL NULL

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1, /* the driver's */
    ncclSystemError = 2,        /* the operating system's */
    ncclInternalError = 3,      /* a mistake in the library */
    ncclInvalidArgument = 4,    /* ncclGetLastError names the argument */
    ncclInvalidUsage = 5,       /* a call at the wrong time, or of what is not there */
    ncclRemoteError = 6,        /* another rank is gone */
    ncclInProgress = 7,         /* ncclCommGetAsyncError says until when */
    ncclTimeout = 8,
    ncclNumResults = 9
} ncclResult_t;

/* Words for a result; never NULL. */
const char* ncclGetErrorString(ncclResult_t result);
/* What went wrong last: of a communicator, or (NULL) of this thread. It stays until this thread asks again. */
const char* ncclGetLastError(ncclComm_t comm);
/* NCCL_VERSION_CODE of the library. */
ncclResult_t ncclGetVersion(int* version);
/* Reads NCCL_DEBUG and its companions again, if there is no log yet. */
void ncclResetDebugInit(void);

/* ---- Settings of a communicator -------------------------------------------------------------------------------------- */

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_API_MAGIC 0xcafebeef

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

/* Begins as NCCL_CONFIG_INITIALIZER. */
typedef struct ncclConfig_v23000 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking; /* 0: calls that wait for other ranks return ncclInProgress */
    int cgaClusterSize;
    int minCTAs; /* channels of a call */
    int maxCTAs;
    const char* netName;
    int splitShare;
    int trafficClass;
    const char* commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
    int graphUsageMode;
    int numRmaCtx;
    int maxP2pPeers;
    int graphStreamOrdering;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER \
    {sizeof(ncclConfig_t),  NCCL_API_MAGIC,        NCCL_VERSION_CODE,     NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
     NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
     NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
     NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
     NCCL_CONFIG_UNDEF_INT}

/* ---- Making communicators -------------------------------------------------------------------------------------------- */

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* One process makes an id; all ranks of one communicator need it. It has a secret. */
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
/* One rank. Waits for the others: several ranks of a thread are made in a group. */
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config);
/* All ranks, in this process; devlist may be NULL: the first ndev devices. */
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

#define NCCL_SPLIT_NOCOLOR -1
/* The ranks of one color, in the order of their keys. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* first ends the calls of comm, which may have failed */
/* The ranks that are not in the list: those call it. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags);

/* One rank makes an id for new ranks, and gives it to ncclCommGrow, as they do. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);
/* A rank of comm: rank -1, and an id if it has made one. A new rank: comm NULL, the id, its rank. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                          ncclConfig_t* config);

/* ---- What becomes of them -------------------------------------------------------------------------------------------- */

/* Waits until the calls of this rank have ended. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
/* Ends its calls on all ranks, and then itself. */
ncclResult_t ncclCommAbort(ncclComm_t comm);

#define NCCL_REVOKE_DEFAULT 0x00
/* Ends the calls of all ranks, which then split, shrink or destroy it. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);

#define NCCL_SUSPEND_MEM 0x01 /* the memory of connections and tables, of the device and of the host */
/* On all ranks: gives the communicator's memory back until it is resumed. No window may be registered. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
/* On all ranks: the communicator can make calls again. */
ncclResult_t ncclCommResume(ncclComm_t comm);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);

typedef enum {
    ncclStatGpuMemSuspend = 0,   /* bytes of the device that ncclCommSuspend gives back */
    ncclStatGpuMemSuspended = 1, /* 1 while the communicator is suspended */
    ncclStatGpuMemPersist = 2,   /* bytes of windows and one-sided calls, beside the buffers themselves */
    ncclStatGpuMemTotal = 3      /* both */
} ncclCommMemStat_t;
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

/* Memory that other GPUs and processes may reach: for windows. */
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t ncclMemFree(void* ptr);

/* A buffer of this rank alone. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01 /* ranks use the same offsets of it in a call */
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
/* A buffer on all ranks, which all register. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);

/* ---- Types and operators --------------------------------------------------------------------------------------------- */

typedef enum {
    ncclInt8 = 0, ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2, ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6, ncclHalf = 6,
    ncclFloat32 = 7, ncclFloat = 7,
    ncclFloat64 = 8, ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5, /* the first number of an operator that a program makes */
    ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
    ncclScalarDevice = 0,       /* in the device's memory, read while a call runs */
    ncclScalarHostImmediate = 1 /* in the host's memory, read at once */
} ncclScalarResidence_t;

/* A sum of what each rank multiplies by its scalar; for calls of this communicator and type. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Calls: counts are of elements; a buffer that a rank does not use may be NULL ------------------------------------ */

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream);
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);

/* ---- One-sided calls: the communicator has a window, and the peer takes no part but to wait ------------------------- */

typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;
/* Writes into a peer's window, and signals: what was written is there for a peer that has waited for the signal. */
ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                           size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream);

/* ---- Groups: what is between start and end starts together ----------------------------------------------------------- */

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

typedef struct ncclSimInfo_v22200 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime;
} ncclSimInfo_t;
#define NCCL_SIM_INFO_INITIALIZER {sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT}
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

/* ---- Parameters: settings that the library reads from the environment ------------------------------------------------ */

ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key);
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out);
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out);
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen);
ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen);
void ncclParamDumpAll(void);

/* ---- Twins ----------------------------------------------------------------------------------------------------------- */

#define NCCL_TWIN(name) extern __typeof__(nccl##name) pnccl##name
NCCL_TWIN(AllGather);
NCCL_TWIN(AllReduce);
NCCL_TWIN(AlltoAll);
NCCL_TWIN(Bcast);
NCCL_TWIN(Broadcast);
NCCL_TWIN(CommAbort);
NCCL_TWIN(CommCount);
NCCL_TWIN(CommCuDevice);
NCCL_TWIN(CommDeregister);
NCCL_TWIN(CommDestroy);
NCCL_TWIN(CommFinalize);
NCCL_TWIN(CommGetAsyncError);
NCCL_TWIN(CommGetUniqueId);
NCCL_TWIN(CommGrow);
NCCL_TWIN(CommInitAll);
NCCL_TWIN(CommInitRank);
NCCL_TWIN(CommInitRankConfig);
NCCL_TWIN(CommInitRankScalable);
NCCL_TWIN(CommMemStats);
NCCL_TWIN(CommRegister);
NCCL_TWIN(CommResume);
NCCL_TWIN(CommRevoke);
NCCL_TWIN(CommShrink);
NCCL_TWIN(CommSplit);
NCCL_TWIN(CommSuspend);
NCCL_TWIN(CommUserRank);
NCCL_TWIN(CommWindowDeregister);
NCCL_TWIN(CommWindowRegister);
NCCL_TWIN(Gather);
NCCL_TWIN(GetErrorString);
NCCL_TWIN(GetLastError);
NCCL_TWIN(GetUniqueId);
NCCL_TWIN(GetVersion);
NCCL_TWIN(GroupEnd);
NCCL_TWIN(GroupSimulateEnd);
NCCL_TWIN(GroupStart);
NCCL_TWIN(MemAlloc);
NCCL_TWIN(MemFree);
NCCL_TWIN(ParamBind);
NCCL_TWIN(ParamDumpAll);
NCCL_TWIN(ParamGet);
NCCL_TWIN(ParamGetAllParameterKeys);
NCCL_TWIN(ParamGetI8);
NCCL_TWIN(ParamGetI16);
NCCL_TWIN(ParamGetI32);
NCCL_TWIN(ParamGetI64);
NCCL_TWIN(ParamGetParameter);
NCCL_TWIN(ParamGetStr);
NCCL_TWIN(ParamGetU8);
NCCL_TWIN(ParamGetU16);
NCCL_TWIN(ParamGetU32);
NCCL_TWIN(ParamGetU64);
NCCL_TWIN(PutSignal);
NCCL_TWIN(Recv);
NCCL_TWIN(RedOpCreatePreMulSum);
NCCL_TWIN(RedOpDestroy);
NCCL_TWIN(Reduce);
NCCL_TWIN(ReduceScatter);
NCCL_TWIN(ResetDebugInit);
NCCL_TWIN(Scatter);
NCCL_TWIN(Send);
NCCL_TWIN(Signal);
NCCL_TWIN(WaitSignal);
NCCL_TWIN(WinGetUserPtr);
#undef NCCL_TWIN

#ifdef __cplusplus
}
#endif

#endif
