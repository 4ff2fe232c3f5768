/* Collectives over MPI, timed: what FerroCCL is compared with.
 *
 *   mpicc -O3 -march=native -o mpi_collectives benches/peers/mpi_collectives.c
 *   mpirun -n 4 ./mpi_collectives -b 8 -e 67108864 -f 4            one line of JSON a size
 *   mpirun -n 4 ./mpi_collectives all_gather -b 64 -e 1048576
 *   mpirun -n 16 ./mpi_collectives ring -b 24000000 -e 24000000
 *   mpirun -n 4 ./mpi_collectives --serve                          requests come as lines of stdin
 *
 * all_reduce, all_gather, reduce_scatter, broadcast, reduce and all_to_all of f32, out of place where MPI has that; ring is an
 * all-reduce by MPI_Sendrecv. A size is that of a rank's largest buffer. Two figures a size, because they answer two questions:
 *
 *   batch_us   operations back to back, the clock read once around all of them: what nccl-tests
 *              prints. Slowest rank of a batch; the median batch.
 *   each_us    one operation after a barrier; slowest rank; the median. It holds the ranks' skew in
 *              leaving the barrier too, which on more ranks than cores is a turn of the scheduler.
 *
 * The inputs are small integers, so every order of summation gives the same floats and the result is
 * compared exactly, on every rank, before the timed operations and after them.
 *
 * A served request is "COLLECTIVE BYTES SECONDS". Between requests all
 * ranks sleep and hold no buffers: a measured neighbour has the machine, although MPI's waits spin.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, RING, COLLECTIVES };
static const char *const names[COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter",
                                               "broadcast", "reduce", "all_to_all", "ring"};
enum { MAX_SAMPLES = 1000, WARM_UP = 3 };

struct request {
    int collective;
    long count;      /* elements of the largest buffer; below 0: stop */
    double seconds;  /* how long to measure, for each of the two figures */
};

static int rank, ranks;
static float *input, *output, *incoming; /* incoming: one part, for the ring */

static void die(const char *what) {
    fprintf(stderr, "mpi_collectives: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* First element of part `p` when `count` elements are cut into as many parts as there are ranks. */
static long part(long count, int p) { return count * p / ranks; }

/* The textbook ring: n-1 steps after which a rank holds one part's sum, n-1 steps that pass sums on.
 * In the first step a rank sends its own part; in step s it sends what it completed in step s-1. */
static void ring_all_reduce(long count) {
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    memcpy(output, input, count * sizeof(float));
    for (int step = 0; step < ranks - 1; step++) {
        int out = (rank - step + ranks) % ranks, in = (out - 1 + ranks) % ranks;
        long first = part(count, in), n = part(count, in + 1) - first;
        MPI_Sendrecv(output + part(count, out), (int)(part(count, out + 1) - part(count, out)),
                     MPI_FLOAT, next, 0, incoming, (int)n, MPI_FLOAT, previous, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (long i = 0; i < n; i++) output[first + i] += incoming[i];
    }
    for (int step = 0; step < ranks - 1; step++) {
        int out = (rank + 1 - step + ranks) % ranks, in = (out - 1 + ranks) % ranks;
        MPI_Sendrecv(output + part(count, out), (int)(part(count, out + 1) - part(count, out)),
                     MPI_FLOAT, next, 0, output + part(count, in),
                     (int)(part(count, in + 1) - part(count, in)), MPI_FLOAT, previous, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/* The collective of that name; COLLECTIVES if there is none. */
static int named(const char *name) {
    int i = 0;
    while (i < COLLECTIVES && strcmp(name, names[i])) i++;
    return i;
}

static void call(const struct request *r) {
    int all = (int)r->count, block = all / ranks;
    switch (r->collective) {
    case RING: ring_all_reduce(r->count); break;
    case ALL_REDUCE: MPI_Allreduce(input, output, all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(input, block, MPI_FLOAT, output, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(input, output, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(input, block, MPI_FLOAT, output, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE: MPI_Reduce(input, output, all, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); break;
    /* There is one buffer: the root's is its input. */
    case BROADCAST: MPI_Bcast(rank ? output : input, all, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    }
}

/* Rank r's element i is (r + 1) * (i % 5 + 1): at 16 ranks the sums stay below 700, exact in f32. */
static float element(int r, long i) { return (float)((r + 1) * (i % 5 + 1)); }

static void fill(long count) {
    for (long i = 0; i < count; i++) input[i] = element(rank, i);
}

/* How many elements a rank gets, and what the i-th of them is. */
static long received(const struct request *r) {
    if (r->collective == REDUCE_SCATTER) return r->count / ranks;
    if (r->collective == REDUCE) return rank ? 0 : r->count;
    return r->collective == BROADCAST && rank == 0 ? 0 : r->count;
}

static float expected(const struct request *r, long i) {
    long block = r->count / ranks;
    float sum = (float)((long)ranks * (ranks + 1) / 2);
    switch (r->collective) {
    case ALL_GATHER: return element((int)(i / block), i % block);
    case REDUCE_SCATTER: return sum * element(0, rank * block + i);
    case BROADCAST: return element(0, i);
    case ALL_TO_ALL: return element((int)(i / block), rank * block + i % block);
    default: return sum * element(0, i);
    }
}

/* Does one operation and counts the wrong elements over all ranks. */
static long check(const struct request *r) {
    long wrong = 0, all, n = received(r);
    memset(output, 0xff, r->count * sizeof(float)); /* NaN: equal to nothing */
    call(r);
    for (long i = 0; i < n; i++) wrong += output[i] != expected(r, i);
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static double slowest(double mine) {
    double all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

/* Seconds of `n` operations back to back, on the slowest rank. */
static double batch(const struct request *r, long n) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < n; i++) call(r);
    return slowest(MPI_Wtime() - start);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *reserve(long count) {
    size_t bytes = ((size_t)count * sizeof(float) + 4095) / 4096 * 4096 + 4096;
    float *buffer = aligned_alloc(4096, bytes);
    if (!buffer) die("out of memory");
    memset(buffer, 0, bytes); /* touched now, not in the first timed operation */
    return buffer;
}

static void measure(const struct request *r) {
    static double each[MAX_SAMPLES], batches[MAX_SAMPLES];
    input = reserve(r->count);
    output = reserve(r->count);
    incoming = reserve(r->count / ranks + 1);
    fill(r->count);
    long wrong = check(r);
    batch(r, WARM_UP);

    /* A batch is about a twentieth of the budget; all ranks learn the same lengths from `slowest`. */
    double one = batch(r, WARM_UP) / WARM_UP;
    if (one < 1e-7) one = 1e-7;
    long length = (long)(r->seconds / 20 / one);
    length = length < 1 ? 1 : length > 20000 ? 20000 : length;

    int nbatches = 0;
    for (double spent = 0; nbatches < 3 || (spent < r->seconds && nbatches < MAX_SAMPLES); nbatches++) {
        double took = batch(r, length);
        batches[nbatches] = took / (double)length;
        spent += took;
    }
    int neach = 0;
    for (double spent = 0; neach < 3 || (spent < r->seconds && neach < MAX_SAMPLES); neach++)
        spent += each[neach] = batch(r, 1);

    wrong += check(r);
    free(input), free(output), free(incoming);
    if (rank) return;
    qsort(batches, nbatches, sizeof(double), ascending);
    qsort(each, neach, sizeof(double), ascending);
    printf("{\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"batch_us\":%.3f,\"batch_min_us\":%.3f,"
           "\"each_us\":%.3f,\"each_min_us\":%.3f,\"batch_length\":%ld,\"batches\":%d,\"samples\":%d,"
           "\"wrong\":%ld}\n",
           names[r->collective], ranks, r->count * (long)sizeof(float),
           batches[nbatches / 2] * 1e6, batches[0] * 1e6, each[neach / 2] * 1e6, each[0] * 1e6, length,
           nbatches, neach, wrong);
    fflush(stdout);
}

/* Elements of the largest buffer; where it has a block for each rank, all blocks are alike. */
static long elements(int collective, long bytes) {
    long count = bytes / (long)sizeof(float);
    int blocks = collective == ALL_GATHER || collective == REDUCE_SCATTER || collective == ALL_TO_ALL;
    return blocks ? count / ranks * ranks : count;
}

/* Rank 0's next request, to all ranks; those who wait for it sleep. */
static struct request next_request(void) {
    struct request r = {ALL_REDUCE, -1, 0};
    char line[256], name[32];
    long bytes;
    if (rank == 0 && fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %ld %lf", name, &bytes, &r.seconds) != 3 || bytes < 4 || bytes > 1L << 30)
            die("a request is COLLECTIVE BYTES SECONDS");
        r.collective = named(name);
        if (r.collective == COLLECTIVES) die("no such collective");
        r.count = elements(r.collective, bytes);
    }
    MPI_Request pending;
    int arrived = 0;
    MPI_Ibcast(&r, sizeof r, MPI_BYTE, 0, MPI_COMM_WORLD, &pending);
    for (;;) {
        MPI_Test(&pending, &arrived, MPI_STATUS_IGNORE);
        if (arrived) return r;
        nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
    }
}

static const char usage[] = "usage: [COLLECTIVE] [-b BYTES] [-e BYTES] [-f FACTOR] [-s SECONDS] [--serve]";

int main(int argc, char **argv) {
    long begin = 8, end = 64 << 20, factor = 4;
    struct request r = {ALL_REDUCE, 0, 0.3};
    int serve = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--serve")) serve = 1;
        else if (argv[i][0] != '-' && named(argv[i]) < COLLECTIVES) r.collective = named(argv[i]);
        else if (i + 1 == argc) die(usage);
        else if (!strcmp(argv[i], "-b")) begin = atol(argv[++i]);
        else if (!strcmp(argv[i], "-e")) end = atol(argv[++i]);
        else if (!strcmp(argv[i], "-f")) factor = atol(argv[++i]);
        else if (!strcmp(argv[i], "-s")) r.seconds = atof(argv[++i]);
        else die(usage);
    }
    if (begin < 4 || factor < 2 || end > 1L << 30) die("BYTES from 4 to 2^30, FACTOR from 2");
    if (serve) {
        for (r = next_request(); r.count >= 0; r = next_request()) measure(&r);
    } else {
        for (long bytes = begin;;) { /* the last step is cut short, so that `end` is among the sizes */
            r.count = elements(r.collective, bytes);
            measure(&r);
            if (bytes >= end) break;
            bytes = bytes > end / factor ? end : bytes * factor;
        }
    }
    MPI_Finalize();
}
