// What a barrier takes without any library, of ranks that outnumber the cores and touch as much memory as is said in each turn.
//
//     gcc -O2 -mno-red-zone -o barrier benches/peers/barrier.c -lpthread
//     ./barrier RANKS CALLS processes|threads [CODE_LINES CODE_PAGES DATA_LINES DATA_PAGES]
//
// Rank r is bound to core r % 2. In each call it runs through so many cache lines of code, which all ranks share as they share a program,
// of 7 instructions each, and meanwhile loads from so many cache lines of its own, each load at the address that the last one gave. Lines
// are spread evenly over their pages. Then it stores the number of the call into its line of shared memory, and waits for those of all
// others: for ranks of its own core it yields at once, at those of the other core it looks 50 times before. Prints microseconds of a call.
//
// For x86-64 and Linux: it writes machine code.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LINE = 64, CORES = 2, LOOKS = 50, MOST_RANKS = 64 };

struct place {
    _Alignas(128) _Atomic unsigned long call;
};

static struct place *places;
static long ranks, calls;
static long code_lines, code_pages, data_lines, data_pages;
static long *code_at, *data_at;
static char *code;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *map(size_t bytes, int flags) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, flags | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

// Where distinct lines are, spread evenly over pages, in a random order that is always the same.
static long *spread(long lines, long pages) {
    static unsigned seed = 12345;
    long *at = malloc((lines + 1) * sizeof *at);
    if (!at) die("malloc");
    for (long i = 0; i < lines; i++) at[i] = i % pages * PAGE + (i / pages * 9 + i % pages * 5) % (PAGE / LINE) * LINE;
    for (long i = lines - 1; i > 0; i--) {
        seed = seed * 1103515245 + 12345;
        long j = (seed >> 8) % (i + 1), kept = at[i];
        at[i] = at[j];
        at[j] = kept;
    }
    return at;
}

// Each line of code adds to two registers in turn, does its share of the loads, and jumps to the next line.
static void write_code(void) {
    static const unsigned char add[8] = "\x48\x83\xc0\x01\x48\x83\xc2\x01", load[3] = "\x48\x8b\x3f";
    long loads = 0;
    code_at = spread(code_lines, code_pages);
    data_at = spread(data_lines, data_pages);
    code = map(code_pages * PAGE, MAP_SHARED);
    for (long i = 0; i < code_lines; i++) {
        char *at = code + code_at[i];
        for (int k = 0; k < 3; k++, at += sizeof add) memcpy(at, add, sizeof add);
        for (; loads < data_lines * (i + 1) / code_lines; loads++, at += sizeof load) memcpy(at, load, sizeof load);
        if (i + 1 == code_lines) {
            *at = (char)0xc3;
        } else {
            int ahead = (int)(code + code_at[i + 1] - (at + 5));
            *at = (char)0xe9;
            memcpy(at + 1, &ahead, sizeof ahead);
        }
    }
}

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int is_there(long rank, unsigned long call) {
    return atomic_load_explicit(&places[rank].call, memory_order_acquire) >= call;
}

static void run(long rank) {
    char *own = map((data_pages + 1) * PAGE, MAP_PRIVATE);
    void *first = own + (data_lines ? data_at[0] : 0);
    for (long i = 0; i < data_lines; i++) *(void **)(own + data_at[i]) = own + data_at[(i + 1) % data_lines];
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(rank % CORES, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores)) die("sched_setaffinity");
    double begun = 0;
    // The first half is not measured.
    for (unsigned long call = 1; call <= 2ul * calls; call++) {
        if (call == (unsigned long)calls) begun = microseconds();
        if (code_lines) {
            void *data = first, *function = code + code_at[0];
            __asm__ volatile("call *%1" : "+D"(data) : "r"(function) : "rax", "rdx", "cc", "memory");
        }
        atomic_store_explicit(&places[rank].call, call, memory_order_release);
        for (long other = rank % CORES; other < ranks; other += CORES)
            while (!is_there(other, call)) sched_yield();
        for (long other = 1 - rank % CORES; other < ranks; other += CORES)
            for (int looks = 0; !is_there(other, call);) {
                if (looks++ < LOOKS) {
                    __builtin_ia32_pause();
                } else {
                    looks = 0;
                    sched_yield();
                }
            }
    }
    if (rank == 0) printf("%.2f\n", (microseconds() - begun) / calls);
}

static void *run_thread(void *rank) {
    run((long)rank);
    return NULL;
}

int main(int n, char **arguments) {
    if (n != 4 && n != 8) {
        fprintf(stderr, "usage: %s RANKS CALLS processes|threads [CODE_LINES CODE_PAGES DATA_LINES DATA_PAGES]\n", arguments[0]);
        return 2;
    }
    ranks = atol(arguments[1]);
    calls = atol(arguments[2]);
    int threads = !strcmp(arguments[3], "threads");
    if (n == 8) {
        code_lines = atol(arguments[4]);
        code_pages = atol(arguments[5]);
        data_lines = atol(arguments[6]);
        data_pages = atol(arguments[7]);
    }
    // A line of code holds two loads at most, and a page 64 lines.
    int fits = code_lines <= code_pages * (PAGE / LINE) && data_lines <= data_pages * (PAGE / LINE) && data_lines <= 2 * code_lines;
    if (ranks < 1 || ranks > MOST_RANKS || calls < 1 || code_lines < 0 || data_lines < 0 || !fits || (!threads && strcmp(arguments[3], "processes"))) {
        fprintf(stderr, "1 to %d ranks; a page has %d lines, and there are at most twice as many of data as of code\n", MOST_RANKS, PAGE / LINE);
        return 2;
    }
    places = map(MOST_RANKS * sizeof *places, MAP_SHARED);
    if (code_lines) write_code();
    if (threads) {
        pthread_t all[MOST_RANKS];
        for (long rank = 0; rank < ranks; rank++)
            if (pthread_create(&all[rank], NULL, run_thread, (void *)rank)) die("pthread_create");
        for (long rank = 0; rank < ranks; rank++) pthread_join(all[rank], NULL);
        return 0;
    }
    for (long rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0) {
            run(rank);
            fflush(stdout);
            _exit(0);
        }
    }
    int status, failed = 0;
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}
