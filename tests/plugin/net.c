/* A network plugin to test FerroCCL with: TCP over the loopback, behind any of the versions 8 to 11 of NCCL's net ABI.
 *
 *     cc -shared -fPIC -DNET_VERSION=11 -o libnccl-net-test.so net.c
 *
 * It is strict: a call that NCCL would not make (a registration of another connection, a buffer outside its
 * registration, a request that is done already, one request too many) is an error. It is slow to answer: the first
 * connect, accept and isend have to be asked for again, and a message moves only when it is asked about. And it keeps the
 * state of a connection that is being made in the handle, and puts its isend into the table only in init, as plugins may.
 *
 * What it is to do wrong is said by the macros below. The layouts are facts of NCCL's headers net_v8.h to net_v11.h
 * (plugins/net/example/nccl); nothing else is from there, and no header is needed. proxy/tests/plugin/ compiles it.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* 8 to 11; and 7, which has the layout of 8 under another name. */
#ifndef NET_VERSION
#error "say -DNET_VERSION=8, 9, 10 or 11"
#endif

/* What the plugin is. */
#ifndef NAME
#define NAME "loopback"
#endif
#ifndef INIT_RESULT
#define INIT_RESULT ok
#endif
#ifndef DEVICES
#define DEVICES 2
#endif
/* What a device is. With GPU, any memory is taken for a GPU's. */
#ifndef DEVICE_NAME
#define DEVICE_NAME "lo"
#endif
#ifndef PCI_PATH
#define PCI_PATH "/sys/devices/virtual/net/lo"
#endif
#ifndef POINTERS
#ifdef GPU
#define POINTERS 7
#else
#define POINTERS 1
#endif
#endif
#ifndef SPEED
#define SPEED 40000
#endif
#ifndef PORT
#define PORT 1
#endif
#ifndef MAX_RECVS
#define MAX_RECVS 4
#endif
#ifndef DEVICE_TYPE
#define DEVICE_TYPE 0
#endif
#ifndef MAX_P2P_BYTES
#define MAX_P2P_BYTES ((size_t)1 << 40)
#endif
/* What it tells of a message's size. */
#ifndef SIZE_OF
#define SIZE_OF(bytes) (bytes)
#endif

enum { ok, cuda_error, system_error, internal_error, invalid_argument, invalid_usage, remote_error };
enum { host = 1, cuda = 2 };
enum { max_requests = 32, handle_bytes = 128 };
/* More than MAX_RECVS says may be asked for by nobody. */
enum { room = MAX_RECVS > 0 && MAX_RECVS < 64 ? MAX_RECVS : 1 };

typedef void logger_t(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef int profiler_t(void **event, int type, void *handle, int64_t plugin, void *data);
typedef struct { int traffic_class; } config_t;

/* What tests look at. Weak, so that a library may have several versions. */
struct counts {
    int inits, contexts, listeners, senders, receivers, registrations;
    int last_fd;
    uint64_t last_offset;
};
__attribute__((weak)) struct counts net_counts;
#define COUNT(what, by) __atomic_add_fetch(&net_counts.what, by, __ATOMIC_SEQ_CST)

static logger_t *log_with;
#define WARN(...) log_with(2, ~0ul, __FILE__, __LINE__, __VA_ARGS__)

/* ---- Listeners and connections -------------------------------------------------------------------------------- */

static const uint64_t magic = 0x6c6f6f706261636b;

struct handle { uint64_t magic; uint16_t port; int fd_and_1, asked; };
_Static_assert(sizeof(struct handle) <= handle_bytes, "fits");

struct listener { int fd, guest, asked; };

struct registration { void *comm; char *data; size_t bytes; int type; };

struct header { uint64_t bytes; uint32_t tag, zero; };

struct request {
    struct comm *comm;
    enum { unused, sends, receives, flushes } kind;
    int count, asked;
    struct { char *data; size_t bytes, got; uint32_t tag; int full; } part[room];
};

/* Either end. Messages are in the queue's order; `header` and `moved` are of the message that is being moved. */
struct comm {
    int fd, asked, broken;
    struct request requests[max_requests];
    struct request *queue[max_requests];
    int queued;
    struct header header;
    size_t moved;
    int part;
};

/* Devices that are made of several. As of other plugins that have any, they are the library's and stay. */
__attribute__((unused)) static struct { int count, devices[4]; } made[4];
static int made_count;

static int no_such(int device) {
    return device < 0 || device >= DEVICES + made_count;
}

static int net_listen(int device, void *opaque, void **out) {
#ifdef NO_LISTENER
    *out = NULL;
    return ok;
#endif
#ifdef LISTEN_TAKES_MS
    usleep(1000 * LISTEN_TAKES_MS);
#endif
    if (no_such(device) || *(uint64_t *)opaque != 0) return internal_error;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    struct listener *listener = calloc(1, sizeof *listener);
    listener->guest = -1;
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(listener->fd, (void *)&at, length) || listen(listener->fd, 64)
        || getsockname(listener->fd, (void *)&at, &length)) {
        WARN("listen: %s", strerror(errno));
        close(listener->fd);
        free(listener);
        return system_error;
    }
    *(struct handle *)opaque = (struct handle){magic, at.sin_port, 0, 0};
    *out = listener;
    COUNT(listeners, 1);
    return ok;
}

static struct comm *new_comm(int fd) {
    struct comm *comm = calloc(1, sizeof *comm);
    comm->fd = fd;
    return comm;
}

static int net_connect(int device, void *opaque, void **out, void **on_device) {
    struct handle *handle = opaque;
    *out = NULL;
    if (no_such(device) || !on_device || *on_device) return internal_error;
    if (handle->magic != magic) return invalid_argument;
    if (!handle->fd_and_1) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        to.sin_port = handle->port;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(fd, (void *)&to, sizeof to) && errno != EINPROGRESS) {
            WARN("connect: %s", strerror(errno));
            close(fd);
            return remote_error;
        }
        handle->fd_and_1 = fd + 1;
        return ok;
    }
    int fd = handle->fd_and_1 - 1;
    if (send(fd, &magic, sizeof magic, MSG_NOSIGNAL) != sizeof magic) {
        if (errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS) return ok;
        WARN("connect: %s", strerror(errno));
        close(fd);
        return remote_error;
    }
    *out = new_comm(fd);
    COUNT(senders, 1);
    return ok;
}

static int net_accept(void *opaque, void **out, void **on_device) {
    struct listener *listener = opaque;
    *out = NULL;
    if (!on_device || *on_device) return internal_error;
    if (!listener->asked++) return ok;
    if (listener->guest < 0) listener->guest = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (listener->guest < 0) return errno == EAGAIN ? ok : system_error;
    uint64_t says = 0;
    ssize_t got = recv(listener->guest, &says, sizeof says, 0);
    if (got < 0 && errno == EAGAIN) return ok;
    if (got == sizeof says && says == magic) {
        *out = new_comm(listener->guest);
        COUNT(receivers, 1);
    } else {
        close(listener->guest);
    }
    listener->guest = -1;
    return ok;
}

static int net_close_listen(void *opaque) {
    struct listener *listener = opaque;
    close(listener->fd);
    if (listener->guest >= 0) close(listener->guest);
    free(listener);
    COUNT(listeners, -1);
    return ok;
}

static void close_comm(struct comm *comm) {
    close(comm->fd);
    free(comm);
}

static int net_close_send(void *comm) {
    close_comm(comm);
    COUNT(senders, -1);
    return ok;
}

static int net_close_recv(void *comm) {
    close_comm(comm);
    COUNT(receivers, -1);
    return ok;
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

static int net_reg_mr(void *comm, void *data, size_t bytes, int type, void **out) {
    if (!(type & POINTERS) || (type != host && type != cuda)) return invalid_argument;
    COUNT(registrations, 1);
#ifdef NO_REGISTRATIONS /* as a network that needs none */
    (void)comm, (void)data, (void)bytes, (void)out;
#else
    struct registration *registration = malloc(sizeof *registration);
    *registration = (struct registration){comm, data, bytes, type};
    *out = registration;
#endif
    return ok;
}

#ifdef GPU
static int net_reg_mr_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **out) {
    if (type != cuda || fd < 0) return invalid_argument;
    net_counts.last_fd = fd;
    net_counts.last_offset = offset;
    return net_reg_mr(comm, data, bytes, type, out);
}
#else
#define net_reg_mr_dma_buf NULL
#endif

static int belongs(void *comm, void *data, size_t bytes, struct registration *to) {
#ifdef NO_REGISTRATIONS
    (void)comm, (void)data, (void)bytes;
    return to == NULL;
#else
    char *at = data;
    return to && to->comm == comm && at >= to->data && at + bytes <= to->data + to->bytes;
#endif
}

static int net_dereg_mr(void *comm, void *opaque) {
#ifndef NO_REGISTRATIONS
    struct registration *registration = opaque;
    if (registration->comm != comm) return invalid_argument;
    free(registration);
#else
    (void)comm, (void)opaque;
#endif
    COUNT(registrations, -1);
    return ok;
}

/* ---- Messages ------------------------------------------------------------------------------------------------- */

static struct request *new_request(struct comm *comm, int kind, int count) {
    for (int i = 0; i < max_requests; i++) {
        struct request *request = &comm->requests[i];
        if (request->kind == unused) {
            *request = (struct request){.comm = comm, .kind = kind, .count = count};
            if (kind != flushes) comm->queue[comm->queued++] = request;
            return request;
        }
    }
    WARN("more than %d requests", max_requests);
    return NULL;
}

static int isend(struct comm *comm, void *data, size_t bytes, int tag, void *memory, void **out) {
    if (!belongs(comm, data, bytes, memory) || *out) return invalid_argument;
    if (!comm->asked++) return ok;
    struct request *request = new_request(comm, sends, 1);
    if (!request) return internal_error;
    request->part[0].data = data;
    request->part[0].bytes = bytes;
    request->part[0].tag = tag;
    *out = request;
    return ok;
}

static int post(struct comm *comm, int kind, int n, void **data, size_t *bytes, int *tags, void **memory, void **out) {
    if (n < 1 || n > MAX_RECVS || *out) return invalid_argument;
    for (int i = 0; i < n; i++)
        if (!belongs(comm, data[i], bytes[i], memory[i])) return invalid_argument;
    struct request *request = new_request(comm, kind, n);
    if (!request) return internal_error;
    for (int i = 0; i < n; i++) {
        request->part[i].data = data[i];
        request->part[i].bytes = bytes[i];
        request->part[i].tag = tags ? tags[i] : 0;
    }
    *out = request;
    return ok;
}

#ifdef NO_IFLUSH
#define net_iflush NULL
#else
static int net_iflush(void *comm, int n, void **data, int *sizes, void **memory, void **out) {
    size_t bytes[room];
    for (int i = 0; i < n && i < room; i++) bytes[i] = sizes[i];
    return post(comm, flushes, n, data, bytes, NULL, memory, out);
}
#endif

enum { failed = -1, later, all_moved, header_moved };

/* Moves what is left of header and data; a header that has come is told of. */
static int move(struct comm *comm, int out, char *data) {
    const size_t first = sizeof comm->header;
    for (;;) {
        size_t at = comm->moved, end = first + comm->header.bytes;
        if (at >= first && at == end) return all_moved;
        char *from = at < first ? (char *)&comm->header + at : data + (at - first);
        size_t left = (at < first ? first : end) - at;
        ssize_t n = out ? send(comm->fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(comm->fd, from, left, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return later;
        if (n <= 0) {
            WARN("%s: %s", out ? "send" : "receive", n ? strerror(errno) : "the other end is closed");
            return failed;
        }
        comm->moved += n;
        if (!out && comm->moved == first) return header_moved;
    }
}

/* Finds the buffer that a message is for. */
static int find_part(struct comm *comm, struct request *request) {
    for (comm->part = 0; comm->part < request->count; comm->part++)
        if (!request->part[comm->part].full && request->part[comm->part].tag == comm->header.tag) break;
    if (comm->part == request->count) {
        WARN("nobody waits for tag %u", comm->header.tag);
        return internal_error;
    }
    if (comm->header.bytes > request->part[comm->part].bytes) {
        WARN("%llu bytes for %zu", (unsigned long long)comm->header.bytes, request->part[comm->part].bytes);
        return invalid_usage;
    }
    return ok;
}

/* Moves a request that is the first of the queue. Those behind it wait until somebody asks about it. */
static int progress(struct comm *comm, struct request *request) {
    while (comm->queued && comm->queue[0] == request) {
        int out = request->kind == sends;
        if (out && !comm->moved) comm->header = (struct header){request->part[0].bytes, request->part[0].tag, 0};
        int state = move(comm, out, request->part[comm->part].data);
        if (state == failed) return remote_error;
        if (state == later) return ok;
        if (state == header_moved) {
            int result = find_part(comm, request);
            if (result) return result;
            continue;
        }
        request->part[comm->part].full = 1;
        request->part[comm->part].got = comm->header.bytes;
        comm->moved = 0;
        comm->part = 0;
        int full = 0;
        for (int i = 0; i < request->count; i++) full += request->part[i].full;
        if (full == request->count) {
            comm->queued--;
            memmove(comm->queue, comm->queue + 1, comm->queued * sizeof *comm->queue);
        }
    }
    return ok;
}

static int net_test(void *opaque, int *done, int *sizes) {
    struct request *request = opaque;
    *done = 0;
    if (request->kind == unused) return invalid_argument;
    if (request->kind == flushes) {
        if (sizes) return invalid_argument;
        *done = request->asked++ > 0;
    } else {
        int result = request->comm->broken;
        if (!result) result = request->comm->broken = progress(request->comm, request);
        *done = 1;
        for (int i = 0; i < request->count; i++) *done &= request->part[i].full;
        if (result && !*done) return result;
    }
    if (!*done) return ok;
    for (int i = 0; sizes && i < request->count; i++) sizes[i] = SIZE_OF((int)request->part[i].got);
    request->kind = unused;
    return ok;
}

static int net_devices(int *count) {
    *count = DEVICES + made_count;
    return ok;
}

/* ---- What differs between the versions -------------------------------------------------------------------------- */

typedef struct {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global;
#if NET_VERSION >= 9
    int force_flush;
#endif
    int speed, port;
    float latency;
    int max_comms, max_recvs, device_type, device_version;
#if NET_VERSION >= 9
    struct { int count, devices[4]; } v_props;
    size_t max_p2p_bytes, max_coll_bytes;
#endif
#if NET_VERSION >= 11
    int max_multi_request_size;
#endif
} properties_t;

static int net_get_properties(int device, properties_t *p) {
    if (no_such(device)) return invalid_argument;
    p->name = device < DEVICES ? DEVICE_NAME : "lo+lo";
    p->pci_path = device ? NULL : PCI_PATH;
    p->guid = 0x1122334455667788 + device;
    p->ptr_support = POINTERS;
    p->speed = SPEED;
    p->port = PORT;
    p->latency = 12.5f;
    p->max_comms = 1024;
    p->max_recvs = MAX_RECVS;
    p->device_type = DEVICE_TYPE;
    p->device_version = 0;
#if NET_VERSION >= 9
    p->v_props.count = 1;
    p->v_props.devices[0] = device;
    if (device >= DEVICES) {
        memcpy(&p->v_props, &made[device - DEVICES], sizeof p->v_props);
        p->speed = SPEED * p->v_props.count;
    }
#ifdef MEMBERS
    p->v_props.count = MEMBERS;
#endif
    p->max_p2p_bytes = MAX_P2P_BYTES;
    p->max_coll_bytes = MAX_P2P_BYTES;
#endif
#if NET_VERSION >= 11
    p->max_multi_request_size = 1;
#endif
    return ok;
}

#if NET_VERSION >= 11
#define CONTEXT void *context,
#define CHECK_CONTEXT if (!context || *(uint64_t *)context != magic) return internal_error
#else
#define CONTEXT
#define CHECK_CONTEXT
#endif
#if NET_VERSION == 10
#define CONFIG config_t *config,
#define CHECK_CONFIG if (config->traffic_class != -1) return internal_error
#else
#define CONFIG
#define CHECK_CONFIG
#endif
#if NET_VERSION >= 10
#define OF_MESSAGE void *of_message,
#define OF_MESSAGES void **of_messages,
#else
#define OF_MESSAGE
#define OF_MESSAGES
#endif
#if NET_VERSION >= 9
typedef size_t bytes_t;
#else
typedef int bytes_t;
#endif

static int listen_v(CONTEXT int device, void *handle, void **out) {
    CHECK_CONTEXT;
    return net_listen(device, handle, out);
}

static int connect_v(CONTEXT int device, CONFIG void *handle, void **out, void **on_device) {
    CHECK_CONTEXT;
    CHECK_CONFIG;
    return net_connect(device, handle, out, on_device);
}

static int isend_v(void *comm, void *data, bytes_t bytes, int tag, void *memory, OF_MESSAGE void **out) {
#if NET_VERSION >= 10
    if (of_message) return invalid_argument;
#endif
    return isend(comm, data, bytes, tag, memory, out);
}

static int irecv_v(void *comm, int n, void **data, bytes_t *sizes, int *tags, void **memory, OF_MESSAGES void **out) {
    size_t bytes[room];
    for (int i = 0; i < n && i < room; i++) {
        bytes[i] = sizes[i];
#if NET_VERSION >= 10
        if (of_messages[i]) return invalid_argument;
#endif
    }
    return post(comm, receives, n, data, bytes, tags, memory, out);
}

#if NET_VERSION >= 9 && !defined(NO_VIRTUAL_DEVICES)
static int net_make_v_device(int *device, void *opaque) {
#ifdef MAKES
    (void)opaque;
    *device = MAKES;
    return ok;
#else
    if (made_count == 4) return invalid_usage;
    memcpy(&made[made_count], opaque, sizeof made[0]);
    for (int i = 0; i < made[made_count].count; i++)
        if (made[made_count].devices[i] < 0 || made[made_count].devices[i] >= DEVICES) return invalid_argument;
    *device = DEVICES + made_count++;
    return ok;
#endif
}
#else
#define net_make_v_device NULL
#endif

struct table {
    const char *name;
#if NET_VERSION >= 11
    int (*init)(void **, uint64_t, config_t *, logger_t *, profiler_t *);
#elif NET_VERSION == 10
    int (*init)(logger_t *, profiler_t *);
#else
    int (*init)(logger_t *);
#endif
    int (*devices)(int *);
    int (*get_properties)(int, properties_t *);
    int (*listen)(CONTEXT int, void *, void **);
    int (*connect)(CONTEXT int, CONFIG void *, void **, void **);
    int (*accept)(void *, void **, void **);
    int (*reg_mr)(void *, void *, size_t, int, void **);
    int (*reg_mr_dma_buf)(void *, void *, size_t, int, uint64_t, int, void **);
    int (*dereg_mr)(void *, void *);
    int (*isend)(void *, void *, bytes_t, int, void *, OF_MESSAGE void **);
    int (*irecv)(void *, int, void **, bytes_t *, int *, void **, OF_MESSAGES void **);
    int (*iflush)(void *, int, void **, int *, void **, void **);
    int (*test)(void *, int *, int *);
    int (*close_send)(void *);
    int (*close_recv)(void *);
    int (*close_listen)(void *);
    int (*get_device_mr)(void *, void *, void **);
    int (*irecv_consumed)(void *, int, void *);
#if NET_VERSION >= 9
    int (*make_v_device)(int *, void *);
#endif
#if NET_VERSION >= 11
    int (*finalize)(void *);
    int (*set_net_attr)(void *, void *);
#endif
};

#define PASTE(a, b) a##b
#define NAMED(version) PASTE(ncclNetPlugin_v, version)
#define TABLE NAMED(NET_VERSION)
#ifdef NO_TABLE
__attribute__((visibility("hidden")))
#endif
extern struct table TABLE;

static int init(logger_t *logger) {
    log_with = logger;
    COUNT(inits, 1);
    /* More of either kind than there are registers for. */
    logger(3, 16, __func__, __LINE__, "net %s %d %.1f %zu %.2f %ld %.3f %c %g %x %g %u %g %d %g %d %g %d %g %s %e", "v", NET_VERSION,
           1.5, (size_t)1 << 40, 2.25, -3l, 3.125, 'c', 4.0, 0xabc, 5.0, 6u, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, "end", 1e-10);
    if (INIT_RESULT) WARN("init fails with %d", INIT_RESULT);
#ifdef NO_ISEND
    TABLE.isend = 1 ? NULL : isend_v;
#else
    TABLE.isend = isend_v;
#endif
    return INIT_RESULT;
}

#if NET_VERSION >= 10
static int calls_profiler(profiler_t *profiler) {
    void *event = &event;
    return profiler(&event, 0, NULL, 1, NULL) || event || profiler(&event, 1, NULL, 1, NULL) ? internal_error : ok;
}
#endif

#if NET_VERSION >= 11
struct context { uint64_t magic; config_t *config; };

static int init_v(void **out, uint64_t id, config_t *config, logger_t *logger, profiler_t *profiler) {
    if (!id || config->traffic_class != -1 || calls_profiler(profiler)) return internal_error;
    int result = init(logger);
    if (result) return result;
    struct context *context = malloc(sizeof *context);
    *context = (struct context){magic, config};
    *out = context;
    COUNT(contexts, 1);
    return ok;
}

static int net_finalize(void *opaque) {
    struct context *context = opaque;
    /* The configuration is still there, and no listener or connection. */
    if (context->magic != magic || context->config->traffic_class != -1) abort();
    if (net_counts.contexts == 1 && (net_counts.listeners || net_counts.senders || net_counts.receivers)) abort();
    context->magic = 0;
    free(context);
    COUNT(contexts, -1);
    return ok;
}
#elif NET_VERSION == 10
static int init_v(logger_t *logger, profiler_t *profiler) {
    return calls_profiler(profiler) ? internal_error : init(logger);
}
#else
#define init_v init
#endif

struct table TABLE = {
    .name = NAME,
#ifdef NO_INIT
    .init = 1 ? NULL : init_v,
#else
    .init = init_v,
#endif
    .devices = net_devices,
    .get_properties = net_get_properties,
    .listen = listen_v,
    .connect = connect_v,
    .accept = net_accept,
    .reg_mr = net_reg_mr,
    .reg_mr_dma_buf = net_reg_mr_dma_buf,
    .dereg_mr = net_dereg_mr,
    .irecv = irecv_v,
    .iflush = net_iflush,
    .test = net_test,
    .close_send = net_close_send,
    .close_recv = net_close_recv,
    .close_listen = net_close_listen,
#if NET_VERSION >= 9
    .make_v_device = net_make_v_device,
#endif
#if NET_VERSION >= 11
    .finalize = net_finalize,
#endif
};
