/* A profiler plugin to test FerroCCL with, behind any of the versions 1 to 6 of NCCL's profiler ABI.
 *
 *     cc -shared -fPIC -DPROFILER_VERSION=6 -o libnccl-profiler-test.so profiler.c
 *
 * It says on the error output what it is told, a line each. Events are numbered; a handle that is none, or one that has ended, is
 * told as WRONG. TEST_MASK are the events that it wants, TEST_PROFILER what it does wrong: "null" (no handles), "fail" (errors).
 * The layouts are facts of NCCL's headers profiler_v1.h to profiler_v6.h (src/include/plugin/profiler); nothing else is from
 * there, and no header is needed. tests/plugin/profiler.rs compiles it.
 */

#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 1 to 6; and 7, which has the layout of 6 under another name. */
#ifndef PROFILER_VERSION
#error "say -DPROFILER_VERSION=1, 2, 3, 4, 5 or 6"
#endif

enum { ok = 0, system_error = 2, internal_error = 3 };
enum { group = 1, coll = 2, p2p = 4, proxy_op = 8, proxy_step = 16, kernel = 64, group_api = 256, coll_api = 512,
       p2p_api = 1024, launch = 2048 };

typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

struct description {
#if PROFILER_VERSION < 5
  uint8_t type;
#else
  uint64_t type;
#endif
  void *parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      int root;
      void *stream;
      bool captured;
    } coll_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      void *stream;
      bool captured;
    } p2p_api;
    struct {
      void *stream;
    } launch;
    struct {
#if PROFILER_VERSION < 4
      const char *name;
      uint64_t hash;
#endif
      uint64_t seq;
#if PROFILER_VERSION == 1
      uint8_t function;
#else
      const char *function;
#endif
      const void *send;
      void *recv;
      size_t count;
      int root;
#if PROFILER_VERSION == 1
      uint8_t type;
      uint32_t op;
      size_t traffic;
      uint8_t channels, warps, algorithm, protocol;
      int is_collnet, is_nvls;
#else
      const char *type;
#if PROFILER_VERSION == 2
      size_t traffic;
#endif
      uint8_t channels, warps;
      const char *algorithm, *protocol;
#endif
#if PROFILER_VERSION >= 5
      void *group;
#endif
    } coll;
    struct {
#if PROFILER_VERSION < 4
      const char *name;
      uint64_t hash;
#endif
#if PROFILER_VERSION == 1
      uint8_t function;
      void *buffer;
      uint8_t type;
#else
      const char *function;
      void *buffer;
      const char *type;
#endif
      size_t count;
      int peer;
#if PROFILER_VERSION >= 4
      uint8_t channels;
#endif
#if PROFILER_VERSION >= 5
      void *group;
#endif
    } p2p;
    struct {
      pid_t pid;
      uint8_t channel;
      int peer, steps, chunk, is_send;
    } op;
    struct {
      int step;
    } step;
    struct {
      uint8_t channel;
#if PROFILER_VERSION >= 4
      uint64_t timer;
#endif
    } kernel;
  };
};

struct event {
  unsigned magic;
  int number;
  int ended;
};

static int numbers;

static const char *task(void) {
  const char *said = getenv("TEST_PROFILER");
  return said == NULL ? "" : said;
}

static int number_of(void *handle) {
  struct event *event = handle;
  if (event == NULL) return 0;
  if (event->magic != 0xe7e7) {
    dprintf(2, "profiler: WRONG handle\n");
    abort();
  }
  return event->number;
}

static int made(void **context, int *mask) {
  const char *said = getenv("TEST_MASK");
  *mask = said == NULL ? 0 : atoi(said);
  *context = calloc(1, 8);
  dprintf(2, "profiler: init %d\n", getpid());
#ifdef INIT_FAILS
  return system_error;
#else
  return *context == NULL ? system_error : ok;
#endif
}

#if PROFILER_VERSION < 4
static int init(void **context, int *mask) { return made(context, mask); }
#else
#if PROFILER_VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, logger log) {
#else
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger log) {
#endif
  log(3, 0x4000, __FILE__, __LINE__, "profiler logs %d %s", 42, "words");
  dprintf(2, "profiler: comm %s %d nodes %d ranks %d %s\n", name == NULL ? "NULL" : name, nodes, ranks, rank,
          id == 0 ? "no id" : "id");
  return made(context, mask);
}
#endif

static int start(void *context, void **handle, struct description *d) {
  if (context == NULL) dprintf(2, "profiler: WRONG context\n");
  *handle = NULL;
  if (strcmp(task(), "null") == 0) return ok;
  struct event *event = malloc(sizeof *event);
  if (event == NULL) return system_error;
  *event = (struct event){.magic = 0xe7e7, .number = __atomic_add_fetch(&numbers, 1, __ATOMIC_SEQ_CST)};
  int number = event->number, parent = number_of(d->parent);
  char about[200] = "";
  int in_group = 0;
  switch ((int)d->type) {
  case coll:
#if PROFILER_VERSION == 1
    snprintf(about, sizeof about, "function=%d type=%d algorithm=%d protocol=%d", d->coll.function, d->coll.type,
             d->coll.algorithm, d->coll.protocol);
#else
    snprintf(about, sizeof about, "function=%s type=%s algorithm=%s protocol=%s", d->coll.function, d->coll.type,
             d->coll.algorithm, d->coll.protocol);
#endif
    dprintf(2, "profiler: about %d seq=%d count=%zu root=%d channels=%d in_place=%d\n", number, (int)d->coll.seq,
            d->coll.count, d->coll.root, d->coll.channels, d->coll.send == d->coll.recv);
#if PROFILER_VERSION >= 5
    in_group = number_of(d->coll.group);
#endif
    break;
  case p2p:
#if PROFILER_VERSION == 1
    snprintf(about, sizeof about, "function=%d type=%d count=%zu peer=%d", d->p2p.function, d->p2p.type, d->p2p.count,
             d->p2p.peer);
#else
    snprintf(about, sizeof about, "function=%s type=%s count=%zu peer=%d", d->p2p.function, d->p2p.type, d->p2p.count,
             d->p2p.peer);
#endif
#if PROFILER_VERSION >= 5
    in_group = number_of(d->p2p.group);
#endif
    break;
  case proxy_op:
    snprintf(about, sizeof about, "channel=%d peer=%d steps=%d send=%d here=%d chunk=%d", d->op.channel, d->op.peer,
             d->op.steps, d->op.is_send, d->op.pid == getpid(), d->op.chunk > 0);
    break;
  case proxy_step:
    snprintf(about, sizeof about, "step=%d", d->step.step);
    break;
  case kernel:
#if PROFILER_VERSION >= 4
    snprintf(about, sizeof about, "channel=%d timer=%llu", d->kernel.channel, (unsigned long long)d->kernel.timer);
#else
    snprintf(about, sizeof about, "channel=%d", d->kernel.channel);
#endif
    break;
  case group_api:
    snprintf(about, sizeof about, "captured=%d depth=%d", d->group_api.captured, d->group_api.depth);
    break;
  case coll_api:
    snprintf(about, sizeof about, "function=%s type=%s count=%zu root=%d stream=%d captured=%d", d->coll_api.function,
             d->coll_api.type, d->coll_api.count, d->coll_api.root, d->coll_api.stream != NULL, d->coll_api.captured);
    break;
  case p2p_api:
    snprintf(about, sizeof about, "function=%s type=%s count=%zu stream=%d captured=%d", d->p2p_api.function,
             d->p2p_api.type, d->p2p_api.count, d->p2p_api.stream != NULL, d->p2p_api.captured);
    break;
  case launch:
    snprintf(about, sizeof about, "stream=%d", d->launch.stream != NULL);
    break;
  case group:
    break;
  default:
    snprintf(about, sizeof about, "WRONG type");
  }
  dprintf(2, "profiler: start %d type=%d parent=%d group=%d rank=%d context=%p %s\n", number, (int)d->type, parent,
          in_group, d->rank, context, about);
  if (strcmp(task(), "fail") == 0) {
    dprintf(2, "profiler: stop %d\n", number);
    return internal_error;
  }
  *handle = event;
  return ok;
}

static int stop(void *handle) {
  struct event *event = handle;
  int number = number_of(handle);
  if (__atomic_exchange_n(&event->ended, 1, __ATOMIC_SEQ_CST)) dprintf(2, "profiler: WRONG stop %d\n", number);
  dprintf(2, "profiler: stop %d\n", number);
  return ok;
}

static int record(void *handle, int state, uint64_t *arguments) {
  struct event *event = handle;
  int number = number_of(handle);
  if (event->ended) dprintf(2, "profiler: WRONG record %d\n", number);
  dprintf(2, "profiler: state %d %d %llu\n", number, state, arguments == NULL ? 0 : (unsigned long long)*arguments);
  return ok;
}

static int finalize(void *context) {
  dprintf(2, "profiler: finalize %p\n", context);
  return context == NULL ? internal_error : ok;
}

struct table {
  const char *name;
  void *init, *start, *stop, *record, *finalize;
};

#define NAMED(version) ncclProfiler_v##version
#define NAMED_OF(version) NAMED(version)
struct table NAMED_OF(PROFILER_VERSION);
struct table NAMED_OF(PROFILER_VERSION) = {
#ifndef NO_NAME
    .name = "test",
#endif
#ifndef NO_INIT
    .init = (void *)init,
#endif
#ifndef NO_START
    .start = (void *)start,
#endif
#ifndef NO_STOP
    .stop = (void *)stop,
#endif
#ifndef NO_RECORD
    .record = (void *)record,
#endif
#ifndef NO_FINALIZE
    .finalize = (void *)finalize,
#endif
};
void *unused_of_profiler[] = {(void *)init, (void *)start, (void *)stop, (void *)record, (void *)finalize};
