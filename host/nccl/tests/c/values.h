/* Elements of all types as numbers, for references. Numbers are chosen so that every type has them exactly. */
#ifndef VALUES_H
#define VALUES_H

#include <math.h>
#include "test.h"

static const size_t type_size[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* A small float: bits of exponent and mantissa, and whether the largest exponent is of infinity and NaNs. */
struct small { int exponent, mantissa, ieee; };
static struct small small_of(ncclDataType_t type) {
    switch (type) {
    case ncclFloat16: return (struct small){5, 10, 1};
    case ncclBfloat16: return (struct small){8, 7, 1};
    case ncclFloat8e4m3: return (struct small){4, 3, 0};
    default: return (struct small){5, 2, 1};
    }
}

static double from_small(uint32_t bits, struct small s) {
    int sign = bits >> (s.exponent + s.mantissa) & 1, bias = (1 << (s.exponent - 1)) - 1;
    int exponent = bits >> s.mantissa & ((1 << s.exponent) - 1), mantissa = bits & ((1 << s.mantissa) - 1);
    double value = exponent ? ldexp((1 << s.mantissa) + mantissa, exponent - bias - s.mantissa)
                            : ldexp(mantissa, 1 - bias - s.mantissa);
    return sign ? -value : value;
}

/* The number must be one of the type's. */
static uint32_t to_small(double value, struct small s) {
    uint32_t count = 1u << (1 + s.exponent + s.mantissa);
    if (value == 0) return 0;
    int exponent;
    double fraction = frexp(fabs(value), &exponent); /* 0.5 to 1 */
    int bias = (1 << (s.exponent - 1)) - 1, field = exponent - 1 + bias;
    CHECK(field > 0 && field < (1 << s.exponent));
    uint32_t mantissa = (uint32_t)ldexp(fraction * 2 - 1, s.mantissa);
    uint32_t bits = (uint32_t)field << s.mantissa | mantissa;
    if (value < 0) bits |= count >> 1;
    CHECK(from_small(bits, s) == value);
    return bits;
}

static double get(const void* at, size_t i, ncclDataType_t type) {
    switch (type) {
    case ncclInt8: return ((const int8_t*)at)[i];
    case ncclUint8: return ((const uint8_t*)at)[i];
    case ncclInt32: return ((const int32_t*)at)[i];
    case ncclUint32: return ((const uint32_t*)at)[i];
    case ncclInt64: return (double)((const int64_t*)at)[i];
    case ncclUint64: return (double)((const uint64_t*)at)[i];
    case ncclFloat32: return ((const float*)at)[i];
    case ncclFloat64: return ((const double*)at)[i];
    case ncclFloat16: case ncclBfloat16: return from_small(((const uint16_t*)at)[i], small_of(type));
    default: return from_small(((const uint8_t*)at)[i], small_of(type));
    }
}

static void put(void* at, size_t i, ncclDataType_t type, double value) {
    switch (type) {
    case ncclInt8: ((int8_t*)at)[i] = (int8_t)value; break;
    case ncclUint8: ((uint8_t*)at)[i] = (uint8_t)value; break;
    case ncclInt32: ((int32_t*)at)[i] = (int32_t)value; break;
    case ncclUint32: ((uint32_t*)at)[i] = (uint32_t)value; break;
    case ncclInt64: ((int64_t*)at)[i] = (int64_t)value; break;
    case ncclUint64: ((uint64_t*)at)[i] = (uint64_t)value; break;
    case ncclFloat32: ((float*)at)[i] = (float)value; break;
    case ncclFloat64: ((double*)at)[i] = value; break;
    case ncclFloat16: case ncclBfloat16: ((uint16_t*)at)[i] = (uint16_t)to_small(value, small_of(type)); break;
    default: ((uint8_t*)at)[i] = (uint8_t)to_small(value, small_of(type)); break;
    }
}

/* What rank `r` has at `i`: 0, 1, 2 or 4. Sums of four ranks are at most 16, and products at most 256: for most types exact. */
static double value_of(int r, size_t i) {
    static const double choice[4] = {1, 2, 0, 4};
    return choice[(i * 7 + (size_t)r * 3 + i / 5) % 4];
}

/* The same where products must not be too large for fp8: 1 or 2. */
static double small_value_of(int r, size_t i) { return 1 + (double)((i + (size_t)r) % 2); }

static double combined(ncclRedOp_t op, double a, double b) {
    switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    default: return a + b;
    }
}

#endif
