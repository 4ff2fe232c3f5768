/* FerroCCL's device communicator in CUDA C and C++: what kernels that nvcc or NVRTC compiles communicate by.
 *
 * The host makes a DeviceCommunicator and windows, and passes their values to the kernel by value, in an argument of the same layout
 * (docs/device-api.md). The functions are those of BlockComm in Rust, with the same orders: all threads of a block make the same calls,
 * and blocks of whole warps. A wait that cannot end (time is up, the communicator is aborted) returns 0, then and ever after, and the
 * kernel ends as soon as it can; the host has the reason.
 *
 * Instructions: PTX ISA 9.0, 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.9.14 (multimem), 9.7.13.4 (fence.proxy), 9.7.13.5 (atom), 9.7.13.7
 * (red); the memory model is chapter 8. */
#ifndef FERROCCL_DEVICE_H
#define FERROCCL_DEVICE_H

typedef unsigned int ferroccl_u32;
typedef unsigned long long ferroccl_u64;

/* abi::DeviceComm. */
typedef struct {
    ferroccl_u64 comm, words, peers;
    ferroccl_u32 rank, ranks, barriers, signals;
    ferroccl_u64 teams, network;
    ferroccl_u32 node_rank, node_ranks, rail_rank, rail_ranks, requests, channels;
} ferroccl_device_comm_t;

/* abi::DeviceWindow. */
typedef struct {
    ferroccl_u64 address, bytes, peers, number;
} ferroccl_device_window_t;

/* abi::PutRequest. */
typedef struct {
    ferroccl_u64 number;
    ferroccl_u32 kind, peer;
    ferroccl_u64 window, offset, bytes, from, from_offset;
    ferroccl_u32 index, pad;
} ferroccl_put_request_t;

/* device_comm::Team. */
typedef enum { FERROCCL_WORLD, FERROCCL_NODE, FERROCCL_RAIL } ferroccl_team_t;

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
    ferroccl_u64 asked;
} ferroccl_block_comm_t;

#define FERROCCL_ANY 0xffffffffu     /* abi::NO_RANK */
#define FERROCCL_FAULT_TIMEOUT 2u    /* abi::FaultKind::Timeout */
#define FERROCCL_WAIT_LL_FLAG 3u     /* abi::WaitKind::LlFlag */
#define FERROCCL_WAIT_BARRIER 12u    /* abi::WaitKind::Barrier */
#define FERROCCL_WAIT_SIGNAL 13u     /* abi::WaitKind::Signal */
#define FERROCCL_WAIT_REQUEST 14u    /* abi::WaitKind::Request */
#define FERROCCL_WAIT_FLUSH 15u      /* abi::WaitKind::Flush */
#define FERROCCL_PUT_DATA 1u         /* abi::PutRequest::DATA */
#define FERROCCL_PUT_VALUE 2u        /* abi::PutRequest::VALUE */
#define FERROCCL_PUT_SIGNAL 4u       /* abi::PutRequest::SIGNAL */
#define FERROCCL_PUT_ARRIVAL 8u      /* abi::PutRequest::ARRIVAL */
#define FERROCCL_UNREACHED (1ull << 63) /* abi::WindowPeers::UNREACHED */
#define FERROCCL_BY_RANK 1ull        /* abi::WindowPeers::BY_RANK */
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

static __device__ __forceinline__ void ferroccl_st_relaxed(ferroccl_u64 *p, ferroccl_u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

/* The address of the same word, or byte, in a rank's memory: behind the two words of abi::WindowPeers there is a table of distances. */
static __device__ __forceinline__ char *ferroccl_at(ferroccl_u64 peers, ferroccl_u32 rank, char *own) {
    return own + ((const ferroccl_u64 *)peers)[2 + rank];
}

/* DeviceComm::open. */
static __device__ __forceinline__ ferroccl_block_comm_t ferroccl_open(ferroccl_device_comm_t comm) {
    ferroccl_block_comm_t block = {comm, 0, 0};
    return block;
}

/* BlockComm::reaches. */
static __device__ __forceinline__ int ferroccl_reaches(const ferroccl_device_comm_t *comm, ferroccl_u32 rank) {
    return !comm->network || ((const ferroccl_u64 *)comm->peers)[2 + rank] != FERROCCL_UNREACHED;
}

/* BlockComm::team_rank. */
static __device__ __forceinline__ ferroccl_u32 ferroccl_team_rank(const ferroccl_block_comm_t *block, ferroccl_team_t team) {
    const ferroccl_device_comm_t *comm = &block->comm;
    return team == FERROCCL_WORLD ? comm->rank : team == FERROCCL_NODE ? comm->node_rank : comm->rail_rank;
}

/* BlockComm::team_ranks. */
static __device__ __forceinline__ ferroccl_u32 ferroccl_team_ranks(const ferroccl_block_comm_t *block, ferroccl_team_t team) {
    const ferroccl_device_comm_t *comm = &block->comm;
    return team == FERROCCL_WORLD ? comm->ranks : team == FERROCCL_NODE ? comm->node_ranks : comm->rail_ranks;
}

/* BlockComm::world_rank. */
static __device__ __forceinline__ ferroccl_u32 ferroccl_world_rank(const ferroccl_block_comm_t *block, ferroccl_team_t team,
                                                                   ferroccl_u32 place) {
    const ferroccl_u32 *table = (const ferroccl_u32 *)block->comm.teams;
    return team == FERROCCL_WORLD ? place : table[(team == FERROCCL_NODE ? 0 : block->comm.node_ranks) + place];
}

/* DeviceWindow::peer: of a rank of this rank's node. */
static __device__ __forceinline__ void *ferroccl_peer(ferroccl_device_window_t window, ferroccl_u32 rank, ferroccl_u64 offset) {
    return ferroccl_at(window.peers, rank, (char *)window.address + offset);
}

/* DeviceWindow::multimem_ptr: the address of the same place in the buffers of all ranks, for `multimem` instructions (sm_90). Null where
 * the window has no multicast object. */
static __device__ __forceinline__ void *ferroccl_multimem_ptr(ferroccl_device_window_t window, ferroccl_u64 offset) {
    const ferroccl_u64 distance = ((const ferroccl_u64 *)window.peers)[1];
    return distance && distance != FERROCCL_BY_RANK ? (char *)window.address + offset + distance : 0;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* device_comm::fence_aliases: between accesses by the ranks' own addresses and by that of all ranks. */
static __device__ __forceinline__ void ferroccl_fence_aliases(void) {
    asm volatile("fence.proxy.alias;" ::: "memory");
}

/* Multimem::load_sum: the sums of four floats of all ranks, by an address of ferroccl_multimem_ptr, which is a multiple of 16. */
static __device__ __forceinline__ float4 ferroccl_multimem_load_sum(const float *from) {
    float4 sum;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sum.x), "=f"(sum.y), "=f"(sum.z), "=f"(sum.w)
                 : "l"(from)
                 : "memory");
    return sum;
}

/* Multimem::store: four floats, or any 16 bytes, to the memory of all ranks. */
static __device__ __forceinline__ void ferroccl_multimem_store(float *to, float4 value) {
    asm volatile("multimem.st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}
#endif

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

/* DeviceComm::network_arrival and network_sent, where `own` is arrival or sent: the word that another rank publishes here, in this rank's
 * memory or, of a rank on another node, where the proxy writes it. */
static __device__ __forceinline__ const ferroccl_u64 *ferroccl_told_by(const ferroccl_device_comm_t *comm, ferroccl_u32 rank,
                                                                       ferroccl_u32 own) {
    if (ferroccl_reaches(comm, rank)) return ferroccl_word(comm, own);
    return (const ferroccl_u64 *)comm->network + 16 + own;
}

/* The sum of what `n` ranks from `first` on have published is waited for; `own` is the word of rank 0, and those of the others follow. */
static __device__ __forceinline__ void ferroccl_wait_for(ferroccl_block_comm_t *block, ferroccl_u32 own, ferroccl_u32 first,
                                                         ferroccl_u32 n, ferroccl_u64 wanted, ferroccl_u32 kind,
                                                         ferroccl_u32 peer, ferroccl_u32 index) {
    ferroccl_u64 started = 0;
    ferroccl_u32 spins = 0;
    while (!block->stopped) {
        ferroccl_u64 sum = 0;
        for (ferroccl_u32 i = first; i < first + n; ++i) sum += ferroccl_ld_acquire(ferroccl_told_by(&block->comm, i, own + i));
        if (sum >= wanted) return;
        if (++spins < FERROCCL_SPINS_PER_CHECK) continue;
        spins = 0;
        block->stopped = ferroccl_gives_up(block->comm, kind, peer, index, wanted, &started);
    }
}

/* Waits until so many requests are done. */
static __device__ __forceinline__ void ferroccl_wait_done(ferroccl_block_comm_t *block, ferroccl_u64 wanted, ferroccl_u32 kind,
                                                          ferroccl_u32 index) {
    ferroccl_u64 started = 0;
    ferroccl_u32 spins = 0;
    while (!block->stopped && ferroccl_ld_acquire((const ferroccl_u64 *)block->comm.network) < wanted) {
        if (++spins < FERROCCL_SPINS_PER_CHECK) continue;
        spins = 0;
        block->stopped = ferroccl_gives_up(block->comm, kind, FERROCCL_ANY, index, wanted, &started);
    }
}

/* One thread asks the proxy, once there is room: one more than the request's number, or 0 when it is to give up. */
static __device__ __noinline__ ferroccl_u64 ferroccl_ask(ferroccl_device_comm_t comm, ferroccl_put_request_t request) {
    ferroccl_block_comm_t block = {comm, 0, 0};
    /* DeviceComm::numbered: the last word. */
    ferroccl_u32 last = comm.barriers * (comm.ranks + 1) + comm.signals * (2 * comm.ranks + 1);
    ferroccl_u64 number;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(number) : "l"(ferroccl_word(&comm, last)) : "memory");
    if (number >= comm.requests)
        ferroccl_wait_done(&block, number - comm.requests + 1, FERROCCL_WAIT_REQUEST, request.index);
    if (block.stopped) return 0;
    /* DeviceComm::request. */
    ferroccl_u32 first = (16 + (comm.barriers + comm.signals) * comm.ranks + 15) / 16 * 16;
    ferroccl_u64 *to = (ferroccl_u64 *)comm.network + first + 8 * (number & (comm.requests - 1));
    ferroccl_st_relaxed(to + 1, request.kind | (ferroccl_u64)request.peer << 32);
    ferroccl_st_relaxed(to + 2, request.window);
    ferroccl_st_relaxed(to + 3, request.offset);
    ferroccl_st_relaxed(to + 4, request.bytes);
    ferroccl_st_relaxed(to + 5, request.from);
    ferroccl_st_relaxed(to + 6, request.from_offset);
    ferroccl_st_relaxed(to + 7, request.index);
    ferroccl_st_release(to, number + 1);
    return number + 1;
}

/* BlockComm::request. */
static __device__ __forceinline__ void ferroccl_request(ferroccl_block_comm_t *block, ferroccl_put_request_t request) {
    if (block->stopped) return;
    ferroccl_u64 asked = ferroccl_ask(block->comm, request);
    if (asked) block->asked = asked;
    block->stopped = !asked;
}

static __device__ __forceinline__ void ferroccl_meet(ferroccl_block_comm_t *block, ferroccl_team_t team, ferroccl_u32 index) {
    const ferroccl_device_comm_t *comm = &block->comm;
    ferroccl_u64 *meetings = ferroccl_word(comm, (comm->barriers + comm->signals) * comm->ranks + index);
    ferroccl_u32 members = ferroccl_team_ranks(block, team);
    __syncthreads();
    ferroccl_u64 number = *meetings + 1;
    for (ferroccl_u32 i = threadIdx.x; i < members && !block->stopped; i += blockDim.x) {
        ferroccl_u32 peer = ferroccl_world_rank(block, team, i);
        char *own = (char *)ferroccl_word(comm, index * comm->ranks + comm->rank);
        if (peer != comm->rank && ferroccl_reaches(comm, peer))
            ferroccl_st_release((ferroccl_u64 *)ferroccl_at(comm->peers, peer, own), number);
    }
    for (ferroccl_u32 i = 0; comm->network && threadIdx.x == 0 && i < members; ++i) {
        ferroccl_u32 peer = ferroccl_world_rank(block, team, i);
        ferroccl_put_request_t arrival = {0, FERROCCL_PUT_ARRIVAL, peer, 0, 0, 0, 0, number, index, 0};
        if (!ferroccl_reaches(comm, peer)) ferroccl_request(block, arrival);
    }
    __syncwarp();
    for (ferroccl_u32 i = threadIdx.x; i < members; i += blockDim.x) {
        ferroccl_u32 peer = ferroccl_world_rank(block, team, i);
        if (peer != comm->rank)
            ferroccl_wait_for(block, index * comm->ranks, peer, 1, number, FERROCCL_WAIT_BARRIER, peer, index);
    }
    block->stopped = __syncthreads_or(block->stopped);
    if (threadIdx.x == 0) *meetings = number;
    __syncwarp();
}

/* BlockComm::barrier_of. */
static __device__ __forceinline__ int ferroccl_barrier_of(ferroccl_block_comm_t *block, ferroccl_team_t team, ferroccl_u32 index) {
    int spread = team == FERROCCL_WORLD && block->comm.network;
    for (int phase = 0; phase < (spread ? 3 : 1); ++phase)
        ferroccl_meet(block, !spread ? team : phase == 1 ? FERROCCL_RAIL : FERROCCL_NODE, index);
    return !block->stopped;
}

/* BlockComm::barrier. */
static __device__ __forceinline__ int ferroccl_barrier(ferroccl_block_comm_t *block, ferroccl_u32 index) {
    return ferroccl_barrier_of(block, FERROCCL_WORLD, index);
}

/* BlockComm::signal. */
static __device__ __forceinline__ void ferroccl_signal(ferroccl_block_comm_t *block, ferroccl_u32 peer, ferroccl_u32 index) {
    const ferroccl_device_comm_t *comm = &block->comm;
    __syncthreads();
    if (threadIdx.x == 0 && !ferroccl_reaches(comm, peer)) {
        ferroccl_put_request_t signal = {0, FERROCCL_PUT_SIGNAL, peer, 0, 0, 0, 0, 0, index, 0};
        ferroccl_request(block, signal);
    } else if (threadIdx.x == 0 && !block->stopped) {
        char *own = (char *)ferroccl_word(comm, (comm->barriers + index) * comm->ranks + comm->rank);
        char *to = ferroccl_at(comm->peers, peer, own);
        asm volatile("red.release.sys.global.add.u64 [%0], 1;" ::"l"(to) : "memory");
    }
    __syncwarp();
}

/* BlockComm::put_to, to a rank that is not reached: whoever is reached the kernel copies to itself (ferroccl_peer). Bytes of this rank's
 * window, from a place in it, to a place in the peer's. */
static __device__ __forceinline__ void ferroccl_put_over_network(ferroccl_block_comm_t *block, ferroccl_u32 peer,
                                                                 ferroccl_device_window_t to, ferroccl_u64 offset,
                                                                 ferroccl_device_window_t from, ferroccl_u64 from_offset,
                                                                 ferroccl_u64 bytes) {
    __syncthreads();
    ferroccl_put_request_t put = {0, FERROCCL_PUT_DATA, peer, to.number, offset, bytes, from.number, from_offset, 0, 0};
    if (threadIdx.x == 0) ferroccl_request(block, put);
    __syncwarp();
}

/* BlockComm::flush. */
static __device__ __forceinline__ int ferroccl_flush(ferroccl_block_comm_t *block) {
    if (block->comm.network && threadIdx.x == 0) ferroccl_wait_done(block, block->asked, FERROCCL_WAIT_FLUSH, 0);
    block->stopped = __syncthreads_or(block->stopped);
    return !block->stopped;
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
        ferroccl_u32 sent = (comm->barriers + index) * comm->ranks;
        ferroccl_wait_for(block, sent, any ? 0 : peer, any ? comm->ranks : 1, wanted, FERROCCL_WAIT_SIGNAL, peer, index);
        if (!block->stopped) *taken = wanted;
    }
    block->stopped = __syncthreads_or(block->stopped);
    return !block->stopped;
}

/* device_comm::packet_bytes. */
static __device__ __forceinline__ ferroccl_u64 ferroccl_packet_bytes(ferroccl_u64 bytes) {
    return (bytes + 7) / 8 * 16;
}

/* What a thread does in BlockComm::put_packets: 8 bytes of data, with a flag, as a packet. What other threads have written is there for
 * it behind a __syncthreads. `to` is a multiple of 16, in a window of a rank of this rank's node (ferroccl_peer). */
static __device__ __forceinline__ void ferroccl_put_packet(void *to, ferroccl_u64 data, ferroccl_u32 flag) {
    ferroccl_u64 low = (data & 0xffffffffull) | (ferroccl_u64)flag << 32, high = data >> 32 | (ferroccl_u64)flag << 32;
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

/* What a thread does in BlockComm::wait_packets: the data of a packet with this flag, which rank `peer` stores. When it will not come,
 * block->stopped is set, of this thread: ferroccl_agree tells the others. */
static __device__ __forceinline__ ferroccl_u64 ferroccl_wait_packet(ferroccl_block_comm_t *block, ferroccl_u32 peer,
                                                                    const void *from, ferroccl_u32 flag) {
    ferroccl_u64 low = 0, high = 0, started = 0;
    ferroccl_u32 spins = 0;
    while (!block->stopped) {
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
        if ((ferroccl_u32)(low >> 32) == flag && (ferroccl_u32)(high >> 32) == flag) break;
        if (++spins < FERROCCL_SPINS_PER_CHECK) continue;
        spins = 0;
        block->stopped = ferroccl_gives_up(block->comm, FERROCCL_WAIT_LL_FLAG, peer, 0, flag, &started);
    }
    return (low & 0xffffffffull) | high << 32;
}

/* The end of BlockComm::wait_packets: all threads of the block are here, and whether all have what they waited for. */
static __device__ __forceinline__ int ferroccl_agree(ferroccl_block_comm_t *block) {
    block->stopped = __syncthreads_or(block->stopped);
    return !block->stopped;
}

/* BlockComm::wait_signal. */
static __device__ __forceinline__ int ferroccl_wait_signal(ferroccl_block_comm_t *block, ferroccl_u32 index, ferroccl_u64 n) {
    return ferroccl_wait_signal_of(block, FERROCCL_ANY, index, n);
}

#endif /* __CUDACC__ */
#endif /* FERROCCL_DEVICE_H */
