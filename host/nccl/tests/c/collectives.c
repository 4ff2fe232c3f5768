/* All collectives, types and operators, with odd sizes, in place and out of place, against references. */
#include "values.h"

static int n;
static ncclComm_t comm[MOST];
static void *in[MOST], *out_[MOST];
static const size_t counts[] = {0, 1, 3, 31, 257, 4099};
#define COUNTS (sizeof counts / sizeof *counts)
#define GUARD 0x5a

typedef double (*values)(int r, size_t i);

/* Buffers of `each` elements on every rank, with a byte behind their end that nobody may write. */
static void prepare(size_t send, size_t recv, ncclDataType_t type, values value) {
    for (int r = 0; r < n; r++) {
        in[r] = room(send * type_size[type] + 1);
        out_[r] = room(recv * type_size[type] + 1);
        for (size_t i = 0; i < send; i++) put(in[r], i, type, value(r, i));
        ((unsigned char*)in[r])[send * type_size[type]] = GUARD;
        ((unsigned char*)out_[r])[recv * type_size[type]] = GUARD;
    }
}

static void finish(size_t send, size_t recv, ncclDataType_t type) {
    for (int r = 0; r < n; r++) {
        CHECK(((unsigned char*)in[r])[send * type_size[type]] == GUARD);
        CHECK(((unsigned char*)out_[r])[recv * type_size[type]] == GUARD);
        free(in[r]);
        free(out_[r]);
    }
}

#define ALL_RANKS(call) \
    do { \
        OK(ncclGroupStart()); \
        for (int r = 0; r < n; r++) OK(call); \
        OK(ncclGroupEnd()); \
    } while (0)

static void expect(const char* what, int r, const void* at, size_t i, ncclDataType_t type, double want) {
    double got = get(at, i, type);
    if (got != want) FAIL("%s: rank %d of %d, type %d, element %zu: %g, not %g", what, r, n, type, i, got, want);
}

/* What `op` makes of all ranks' values. An average of integers is cut; one of floats is rounded, so n is a power of two there. */
static double reduced(ncclRedOp_t op, ncclDataType_t type, values value, size_t i) {
    double result = value(0, i);
    for (int r = 1; r < n; r++) result = combined(op, result, value(r, i));
    if (op == ncclAvg) result = type <= ncclUint64 ? floor(result / n) : result / n;
    return result;
}

static int is_float8(ncclDataType_t type) { return type == ncclFloat8e4m3 || type == ncclFloat8e5m2; }

static void reductions(void) {
    for (int t = 0; t < ncclNumTypes; t++)
        for (int o = 0; o < ncclNumOps; o++)
            for (size_t c = 0; c < COUNTS; c++) {
                ncclDataType_t type = (ncclDataType_t)t;
                ncclRedOp_t op = (ncclRedOp_t)o;
                size_t count = counts[c];
                /* What is rounded on the way depends on the order: these are not. */
                if (type >= ncclFloat16 && (n & (n - 1)) && op == ncclAvg) continue;
                values value = op == ncclProd || is_float8(type) ? small_value_of : value_of;
                if (is_float8(type) && n > 4) continue;

                prepare(count, count, type, value);
                ALL_RANKS(ncclAllReduce(in[r], out_[r], count, type, op, comm[r], NULL));
                for (int r = 0; r < n; r++)
                    for (size_t i = 0; i < count; i++)
                        expect("all_reduce", r, out_[r], i, type, reduced(op, type, value, i));
                finish(count, count, type);

                prepare(count, count, type, value);
                ALL_RANKS(ncclAllReduce(in[r], in[r], count, type, op, comm[r], NULL));
                for (int r = 0; r < n; r++)
                    for (size_t i = 0; i < count; i++)
                        expect("all_reduce in place", r, in[r], i, type, reduced(op, type, value, i));
                finish(count, count, type);

                int root = (int)draw((uint64_t)n);
                prepare(count, count, type, value);
                ALL_RANKS(ncclReduce(in[r], r == root ? out_[r] : NULL, count, type, op, root, comm[r], NULL));
                for (size_t i = 0; i < count; i++)
                    expect("reduce", root, out_[root], i, type, reduced(op, type, value, i));
                for (int r = 0; r < n; r++)
                    for (size_t i = 0; i < count; i++) expect("reduce's input", r, in[r], i, type, value(r, i));
                finish(count, count, type);

                size_t all = count * (size_t)n;
                prepare(all, count, type, value);
                ALL_RANKS(ncclReduceScatter(in[r], out_[r], count, type, op, comm[r], NULL));
                for (int r = 0; r < n; r++)
                    for (size_t i = 0; i < count; i++)
                        expect("reduce_scatter", r, out_[r], i, type, reduced(op, type, value, (size_t)r * count + i));
                finish(all, count, type);
            }
}

static void copies(void) {
    for (int t = 0; t < ncclNumTypes; t++)
        for (size_t c = 0; c < COUNTS; c++) {
            ncclDataType_t type = (ncclDataType_t)t;
            size_t count = counts[c], all = count * (size_t)n, bytes = count * type_size[t];
            int root = (int)draw((uint64_t)n);

            prepare(count, all, type, value_of);
            ALL_RANKS(ncclAllGather(in[r], out_[r], count, type, comm[r], NULL));
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < all; i++)
                    expect("all_gather", r, out_[r], i, type, value_of((int)(i / count), i % count));
            finish(count, all, type);

            prepare(count, all, type, value_of);
            for (int r = 0; r < n; r++) memcpy((char*)out_[r] + (size_t)r * bytes, in[r], bytes);
            ALL_RANKS(ncclAllGather((char*)out_[r] + (size_t)r * bytes, out_[r], count, type, comm[r], NULL));
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < all; i++)
                    expect("all_gather in place", r, out_[r], i, type, value_of((int)(i / count), i % count));
            finish(count, all, type);

            prepare(count, count, type, value_of);
            ALL_RANKS(ncclBroadcast(r == root ? in[r] : NULL, out_[r], count, type, root, comm[r], NULL));
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < count; i++) expect("broadcast", r, out_[r], i, type, value_of(root, i));
            finish(count, count, type);

            prepare(count, count, type, value_of);
            ALL_RANKS(ncclBcast(in[r], count, type, root, comm[r], NULL));
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < count; i++) expect("bcast", r, in[r], i, type, value_of(root, i));
            finish(count, count, type);

            prepare(all, all, type, value_of);
            ALL_RANKS(ncclAlltoAll(in[r], out_[r], count, type, comm[r], NULL));
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < all; i++)
                    expect("all_to_all", r, out_[r], i, type, value_of((int)(i / count), (size_t)r * count + i % count));
            finish(all, all, type);

            prepare(count, all, type, value_of);
            ALL_RANKS(ncclGather(in[r], r == root ? out_[r] : NULL, count, type, root, comm[r], NULL));
            for (size_t i = 0; i < all; i++)
                expect("gather", root, out_[root], i, type, value_of((int)(i / count), i % count));
            finish(count, all, type);

            prepare(all, count, type, value_of);
            ALL_RANKS(ncclScatter(r == root ? in[r] : NULL, out_[r], count, type, root, comm[r], NULL));
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < count; i++)
                    expect("scatter", r, out_[r], i, type, value_of(root, (size_t)r * count + i));
            finish(all, count, type);

            /* Around a ring, and each to itself. */
            prepare(count, all, type, value_of);
            OK(ncclGroupStart());
            for (int r = 0; r < n; r++) {
                char* to = out_[r];
                OK(ncclSend(in[r], count, type, (r + 1) % n, comm[r], NULL));
                OK(ncclRecv(to, count, type, (r + n - 1) % n, comm[r], NULL));
                if (n > 1) {
                    OK(ncclSend(in[r], count, type, r, comm[r], NULL));
                    OK(ncclRecv(to + bytes, count, type, r, comm[r], NULL));
                }
            }
            OK(ncclGroupEnd());
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < count; i++) {
                    expect("recv", r, out_[r], i, type, value_of((r + n - 1) % n, i));
                    if (n > 1) expect("recv from itself", r, out_[r], count + i, type, value_of(r, i));
                }
            finish(count, all, type);
        }
}

/* Premultiplied sums: scalars of the host and of the device's memory, other ones on each rank. */
static void premultiplied(void) {
    for (int t = 0; t < ncclNumTypes; t++) {
        ncclDataType_t type = (ncclDataType_t)t;
        if (is_float8(type) && n > 4) continue;
        size_t count = 77;
        ncclRedOp_t op[MOST];
        char scalar[MOST][8];
        for (int r = 0; r < n; r++) {
            put(scalar[r], 0, type, 1 + r % 2);
            OK(ncclRedOpCreatePreMulSum(&op[r], scalar[r], type, r % 2 ? ncclScalarDevice : ncclScalarHostImmediate,
                                        comm[r]));
            CHECK(op[r] >= ncclNumOps && op[r] <= ncclMaxRedOp);
            /* The host's is read at once, the device's when the call runs. */
            put(scalar[r], 0, type, r % 2 ? 4 : 0);
        }
        prepare(count, count, type, small_value_of);
        ALL_RANKS(ncclAllReduce(in[r], out_[r], count, type, op[r], comm[r], NULL));
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < count; i++) {
                double want = 0;
                for (int q = 0; q < n; q++) want += small_value_of(q, i) * (q % 2 ? 4 : 1);
                if (is_float8(type) && want > (type == ncclFloat8e5m2 ? 8 : 16)) continue; /* rounded */
                expect("premultiplied", r, out_[r], i, type, want);
            }
        ncclDataType_t other = type == ncclFloat ? ncclDouble : ncclFloat;
        REFUSED(ncclInvalidArgument, "op", ncclAllReduce(in[0], out_[0], 1, other, op[0], comm[0], NULL));
        if (n > 1) REFUSED(ncclInvalidArgument, "op", ncclAllReduce(in[0], out_[0], 1, type, op[1], comm[0], NULL));
        for (int r = 0; r < n; r++) OK(ncclRedOpDestroy(op[r], comm[r]));
        REFUSED(ncclInvalidArgument, "op", ncclRedOpDestroy(op[0], comm[0]));
        REFUSED(ncclInvalidArgument, "op", ncclAllReduce(in[0], out_[0], 1, type, op[0], comm[0], NULL));
        finish(count, count, type);
    }
}

int main(void) {
    static const int sizes[] = {1, 2, 3, 4, 7};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        n = sizes[s];
        OK(ncclCommInitAll(comm, n, NULL));
        for (int r = 0; r < n; r++) {
            int count, rank, device;
            OK(ncclCommCount(comm[r], &count));
            OK(ncclCommUserRank(comm[r], &rank));
            OK(ncclCommCuDevice(comm[r], &device));
            CHECK(count == n && rank == r && device == r);
        }
        reductions();
        copies();
        premultiplied();
        for (int r = 0; r < n; r++) OK(ncclCommDestroy(comm[r]));
    }
    puts("passed");
    return 0;
}
