/* FerroCCL's device communicator in CUDA C and C++: what kernels that nvcc or NVRTC compiles communicate by.
 *
 * The host makes a DeviceCommunicator and windows, and passes their values to the kernel by value, in an argument of the same layout
 * (docs/device-api.md). The functions are those of BlockComm in Rust, with the same orders: all threads of a block make the same calls,
 * and blocks of whole warps. A wait that cannot end (time is up, the communicator is aborted) returns 0, then and ever after, and the
 * kernel ends as soon as it can; the host has the reason.
 *
 * Instructions: PTX ISA 9.0, 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.13.5 (atom), 9.7.13.7 (red); the memory model is chapter 8. */
#ifndef FERROCCL_DEVICE_H
#define FERROCCL_DEVICE_H

typedef unsigned int ferroccl_u32;
typedef unsigned long long ferroccl_u64;

/* abi::DeviceComm. */
typedef struct {
    ferroccl_u64 comm, words, peers;
    ferroccl_u32 rank, ranks, barriers, signals;
} ferroccl_device_comm_t;

/* abi::DeviceWindow. */
typedef struct {
    ferroccl_u64 address, bytes, peers;
} ferroccl_device_window_t;

/* abi::Comm. */
typedef struct {
    ferroccl_u32 rank, nranks;
    ferroccl_u64 channels, abort, fault, timeout_ns;
} ferroccl_comm_t;

/* The beginning of abi::FaultCell, as far as a kernel writes it. */
typedef struct {
    ferroccl_u64 state, pad[15];
    ferroccl_u32 kind, rank, peer, channel, wait, reserved;
    ferroccl_u64 step;
} ferroccl_fault_cell_t;

/* A block's view of a communicator. */
typedef struct {
    ferroccl_device_comm_t comm;
    int stopped;
} ferroccl_block_comm_t;

#define FERROCCL_ANY 0xffffffffu     /* abi::NO_RANK */
#define FERROCCL_FAULT_TIMEOUT 2u    /* abi::FaultKind::Timeout */
#define FERROCCL_WAIT_BARRIER 12u    /* abi::WaitKind::Barrier */
#define FERROCCL_WAIT_SIGNAL 13u     /* abi::WaitKind::Signal */
#define FERROCCL_SPINS_PER_CHECK 1000

#ifdef __CUDACC__

static __device__ __forceinline__ ferroccl_u64 ferroccl_ld_acquire(const ferroccl_u64 *p) {
    ferroccl_u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
}

static __device__ __forceinline__ void ferroccl_st_release(ferroccl_u64 *p, ferroccl_u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

/* The address of the same word, or byte, in a rank's memory: behind the two words of abi::WindowPeers there is a table of distances. */
static __device__ __forceinline__ char *ferroccl_at(ferroccl_u64 peers, ferroccl_u32 rank, char *own) {
    return own + ((const ferroccl_u64 *)peers)[2 + rank];
}

/* DeviceComm::open. */
static __device__ __forceinline__ ferroccl_block_comm_t ferroccl_open(ferroccl_device_comm_t comm) {
    ferroccl_block_comm_t block = {comm, 0};
    return block;
}

/* DeviceWindow::peer. */
static __device__ __forceinline__ void *ferroccl_peer(ferroccl_device_window_t window, ferroccl_u32 rank, ferroccl_u64 offset) {
    return ferroccl_at(window.peers, rank, (char *)window.address + offset);
}

static __device__ __forceinline__ ferroccl_u64 *ferroccl_word(const ferroccl_device_comm_t *comm, ferroccl_u32 index) {
    return (ferroccl_u64 *)comm->words + index;
}

/* A waiting thread looks around: whether it is to give up. It records the fault where its own time is up. */
static __device__ __noinline__ int ferroccl_gives_up(ferroccl_device_comm_t comm, ferroccl_u32 kind, ferroccl_u32 peer,
                                                      ferroccl_u32 index, ferroccl_u64 step, ferroccl_u64 *started) {
    const ferroccl_comm_t *at = (const ferroccl_comm_t *)comm.comm;
    if (ferroccl_ld_acquire((const ferroccl_u64 *)at->abort)) return 1;
    if (!at->timeout_ns) return 0;
    ferroccl_u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (!*started) {
        *started = now ? now : 1;
        return 0;
    }
    if (now - *started <= at->timeout_ns) return 0;
    ferroccl_fault_cell_t *cell = (ferroccl_fault_cell_t *)at->fault;
    ferroccl_u64 old;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], 0, 1;" : "=l"(old) : "l"(&cell->state) : "memory");
    if (old == 0) {
        cell->kind = FERROCCL_FAULT_TIMEOUT;
        cell->rank = comm.rank;
        cell->peer = peer;
        cell->channel = index;
        cell->wait = kind;
        cell->step = step;
        ferroccl_st_release(&cell->state, 2);
    }
    ferroccl_st_release((ferroccl_u64 *)at->abort, 1);
    return 1;
}

/* The sum of words `first` to `first + n`, each published by one rank, is waited for. */
static __device__ __forceinline__ void ferroccl_wait_for(ferroccl_block_comm_t *block, const ferroccl_u64 *first, ferroccl_u32 n,
                                                         ferroccl_u64 wanted, ferroccl_u32 kind, ferroccl_u32 peer,
                                                         ferroccl_u32 index) {
    ferroccl_u64 started = 0;
    ferroccl_u32 spins = 0;
    while (!block->stopped) {
        ferroccl_u64 sum = 0;
        for (ferroccl_u32 i = 0; i < n; ++i) sum += ferroccl_ld_acquire(first + i);
        if (sum >= wanted) return;
        if (++spins < FERROCCL_SPINS_PER_CHECK) continue;
        spins = 0;
        block->stopped = ferroccl_gives_up(block->comm, kind, peer, index, wanted, &started);
    }
}

/* BlockComm::barrier. */
static __device__ __forceinline__ int ferroccl_barrier(ferroccl_block_comm_t *block, ferroccl_u32 index) {
    const ferroccl_device_comm_t *comm = &block->comm;
    ferroccl_u64 *meetings = ferroccl_word(comm, (comm->barriers + comm->signals) * comm->ranks + index);
    __syncthreads();
    ferroccl_u64 number = *meetings + 1;
    for (ferroccl_u32 peer = threadIdx.x; peer < comm->ranks && !block->stopped; peer += blockDim.x) {
        char *own = (char *)ferroccl_word(comm, index * comm->ranks + comm->rank);
        if (peer != comm->rank) ferroccl_st_release((ferroccl_u64 *)ferroccl_at(comm->peers, peer, own), number);
    }
    for (ferroccl_u32 peer = threadIdx.x; peer < comm->ranks; peer += blockDim.x) {
        const ferroccl_u64 *from = ferroccl_word(comm, index * comm->ranks + peer);
        if (peer != comm->rank) ferroccl_wait_for(block, from, 1, number, FERROCCL_WAIT_BARRIER, peer, index);
    }
    block->stopped = __syncthreads_or(block->stopped);
    if (threadIdx.x == 0) *meetings = number;
    __syncwarp();
    return !block->stopped;
}

/* BlockComm::signal. */
static __device__ __forceinline__ void ferroccl_signal(ferroccl_block_comm_t *block, ferroccl_u32 peer, ferroccl_u32 index) {
    const ferroccl_device_comm_t *comm = &block->comm;
    __syncthreads();
    if (threadIdx.x == 0 && !block->stopped) {
        char *own = (char *)ferroccl_word(comm, (comm->barriers + index) * comm->ranks + comm->rank);
        char *to = ferroccl_at(comm->peers, peer, own);
        asm volatile("red.release.sys.global.add.u64 [%0], 1;" ::"l"(to) : "memory");
    }
    __syncwarp();
}

/* BlockComm::wait_signal_of; of FERROCCL_ANY it is BlockComm::wait_signal. */
static __device__ __forceinline__ int ferroccl_wait_signal_of(ferroccl_block_comm_t *block, ferroccl_u32 peer, ferroccl_u32 index,
                                                              ferroccl_u64 n) {
    const ferroccl_device_comm_t *comm = &block->comm;
    ferroccl_u32 any = peer == FERROCCL_ANY;
    if (threadIdx.x == 0) {
        ferroccl_u32 own = (comm->barriers + comm->signals) * comm->ranks + comm->barriers;
        ferroccl_u32 at = any ? comm->signals * comm->ranks + index : index * comm->ranks + peer;
        ferroccl_u64 *taken = ferroccl_word(comm, own + at);
        ferroccl_u64 wanted = *taken + n;
        const ferroccl_u64 *sent = ferroccl_word(comm, (comm->barriers + index) * comm->ranks + (any ? 0 : peer));
        ferroccl_wait_for(block, sent, any ? comm->ranks : 1, wanted, FERROCCL_WAIT_SIGNAL, peer, index);
        if (!block->stopped) *taken = wanted;
    }
    block->stopped = __syncthreads_or(block->stopped);
    return !block->stopped;
}

/* BlockComm::wait_signal. */
static __device__ __forceinline__ int ferroccl_wait_signal(ferroccl_block_comm_t *block, ferroccl_u32 index, ferroccl_u64 n) {
    return ferroccl_wait_signal_of(block, FERROCCL_ANY, index, n);
}

#endif /* __CUDACC__ */
#endif /* FERROCCL_DEVICE_H */
