/* A tuner plugin to test FerroCCL with, behind any of the versions 2 to 6 of NCCL's tuner ABI.
 *
 *     cc -shared -fPIC -DTUNER_VERSION=6 -o libnccl-tuner-test.so tuner.c
 *
 * It says on the error output what it is asked. What it answers is in TEST_TUNER; what it is to lack is said by the macros
 * below. The layouts are facts of NCCL's headers tuner_v2.h to tuner_v6.h (src/include/plugin/tuner); nothing else is from
 * there, and no header is needed. tests/plugin/tuner.rs compiles it.
 */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 2 to 6; and 1 or 7, which have the layout of 6 under another name. */
#ifndef TUNER_VERSION
#error "say -DTUNER_VERSION=2, 3, 4, 5 or 6"
#endif
#ifndef NAME
#define NAME "test"
#endif

enum { ok = 0, system_error = 2, internal_error = 3 };
enum { algorithms = 7, protocols = 3, ignored = -1 };

typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

struct context {
  unsigned magic;
  int number;
};

static int contexts;

static int made(void **context, size_t ranks, size_t nodes, logger log) {
  struct context *made = malloc(sizeof *made);
  if (made == NULL) return system_error;
  made->magic = 0x7a7a;
  made->number = __atomic_fetch_add(&contexts, 1, __ATOMIC_SEQ_CST);
  *context = made;
  log(3, 0x40, __FILE__, __LINE__, "tuner logs %d %s", 42, "words");
  fprintf(stderr, "tuner: init %zu ranks %zu nodes\n", ranks, nodes);
#ifdef INIT_FAILS
  free(made);
  return system_error;
#else
  return ok;
#endif
}

/* What the plugin is told to do. */
static const char *answer(void) {
  const char *said = getenv("TEST_TUNER");
  return said == NULL ? "nothing" : said;
}

static int asked(struct context *context, int function, size_t bytes) {
  if (context == NULL || context->magic != 0x7a7a) {
    fprintf(stderr, "tuner: WRONG context\n");
    abort();
  }
  fprintf(stderr, "tuner: asked %d of %zu bytes\n", function, bytes);
  return strcmp(answer(), "fail") == 0 ? internal_error : ok;
}

__attribute__((unused)) static int change(struct context *context, float (*table)[protocols], int *channels) {
  const char *said = answer();
  int algorithm, protocol, count;
  for (int a = 0; a < algorithms; a++) {
    for (int p = 0; p < protocols; p++) {
      fprintf(stderr, "tuner: cost %d %d %g\n", a, p, table[a][p]);
      if (strcmp(said, "ignore") == 0) table[a][p] = ignored;
      if (strcmp(said, "nan") == 0) table[a][p] = NAN;
      if (strcmp(said, "negative") == 0) table[a][p] = -5;
      if (strcmp(said, "infinite") == 0) table[a][p] = INFINITY;
      if (strcmp(said, "invent") == 0) table[a][p] = 0;
      if (strcmp(said, "fail") == 0) table[a][p] = 0;
    }
  }
  if (sscanf(said, "take %d %d %d", &algorithm, &protocol, &count) == 3) {
    if (table[algorithm][protocol] != ignored) table[algorithm][protocol] = 0;
    *channels = count;
  }
  if (sscanf(said, "only %d %d", &algorithm, &protocol) == 2) {
    float time = table[algorithm][protocol];
    for (int a = 0; a < algorithms; a++)
      for (int p = 0; p < protocols; p++) table[a][p] = a == algorithm && p == protocol ? time : NAN;
  }
  if (sscanf(said, "channels %d", &count) == 1) *channels = count;
  /* Each communicator something else. */
  if (strcmp(said, "differ") == 0) table[1][context->number % 2 == 0 ? 0 : 2] = 0;
  return ok;
}

#if TUNER_VERSION == 2
static int init(size_t ranks, size_t nodes, logger log, void **context) { return made(context, ranks, nodes, log); }

static int get(void *context, int function, size_t bytes, int collnet, int nvls, int operations, int *algorithm,
               int *protocol, int *channels) {
  int wrong = asked(context, function, bytes);
  int count;
  fprintf(stderr, "tuner: collnet %d nvls %d operations %d\n", collnet, nvls, operations);
  if (strcmp(answer(), "invent") == 0) *algorithm = 77, *protocol = -9;
  if (sscanf(answer(), "take %d %d %d", algorithm, protocol, &count) == 3) *channels = count;
  if (sscanf(answer(), "channels %d", &count) == 1) *channels = count;
  return wrong;
}
#elif TUNER_VERSION == 3
static int init(size_t ranks, size_t nodes, logger log, void **context) { return made(context, ranks, nodes, log); }

static int get(void *context, int function, size_t bytes, int operations, float **table, int rows, int columns,
               int *channels) {
  int wrong = asked(context, function, bytes);
  if (rows != algorithms || columns != protocols || operations != 1) return internal_error;
  change(context, (float (*)[protocols])table, channels);
  return wrong;
}
#else
struct domains {
  int count, least, most;
};
struct constants {
  double base[7][3], hardware[3][7][3], rest[5][4][3];
};

#if TUNER_VERSION == 4
static int init(size_t ranks, size_t nodes, logger log, void **context) { return made(context, ranks, nodes, log); }
#else
static int init(void **context, uint64_t id, size_t ranks, size_t nodes, logger log, struct domains *domains,
                struct constants *constants) {
  fprintf(stderr, "tuner: id %llx domains %d %d %d constants %g %g %g\n", (unsigned long long)id, domains->count,
          domains->least, domains->most, constants->base[0][0], constants->hardware[2][6][2], constants->rest[4][3][2]);
  constants->base[1][1] = 99;
  return made(context, ranks, nodes, log);
}
#endif

static int get(void *context, int function, size_t bytes, int operations, float **table, int rows, int columns,
               int registered, int *channels) {
  int wrong = asked(context, function, bytes);
  fprintf(stderr, "tuner: registered %d\n", registered);
  if (rows != algorithms || columns != protocols || operations != 1) return internal_error;
  change(context, (float (*)[protocols])table, channels);
  return wrong;
}
#endif

static int end(void *context) {
  struct context *made = context;
  fprintf(stderr, "tuner: end\n");
  made->magic = 0;
  return ok;
}

struct table {
  const char *name;
  void *init, *get, *end, *chunk;
};

#define NAMED(version) ncclTunerPlugin_v##version
#define NAMED_OF(version) NAMED(version)
#ifndef NO_TABLE
struct table NAMED_OF(TUNER_VERSION);
struct table NAMED_OF(TUNER_VERSION) = {
#ifndef NO_NAME
    .name = NAME,
#endif
#ifndef NO_INIT
    .init = (void *)init,
#endif
#ifndef NO_GET
    .get = (void *)get,
#endif
#ifndef NO_END
    .end = (void *)end,
#endif
    .chunk = NULL,
};
#endif
void *unused_of_tuner[] = {(void *)init, (void *)get, (void *)end};
