/* CRC32C (Castagnoli): the processor's instruction where it has one, tables elsewhere.

   The instruction takes eight bytes each cycle but answers after three, so three stretches of the data run side by
   side and are joined afterwards: with a start value of 0, the CRC of a||b is that of a, moved over as many zero bytes
   as b has, xor that of b. The readable twin is framepool.client.crc32c. */
#ifndef FP_CRC32C_H
#define FP_CRC32C_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FP_CRC_POLYNOMIAL 0x82F63B78u
#define FP_CRC_LONG 4096
#define FP_CRC_SHORT 256
/* What fp_crc32c_copy takes at a time: three long stretches, which stay in the first cache between copy and sum. */
#define FP_CRC_BLOCK (3 * FP_CRC_LONG)

typedef uint32_t (*fp_crc_fn)(uint32_t state, const unsigned char *data, size_t length);

static uint32_t fp_crc_table[8][256];
static uint32_t fp_crc_over_long[4][256];
static uint32_t fp_crc_over_short[4][256];

/* Tables that move a state over `length` zero bytes, a power of two: bytes of the state by their place and value. */
static void fp_crc_moves(uint32_t moves[4][256], size_t length) {
    uint32_t basis[32], next[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t state = UINT32_C(1) << bit;
        for (int step = 0; step < 8; step++) state = state >> 1 ^ (state & 1 ? FP_CRC_POLYNOMIAL : 0);
        basis[bit] = state; /* one zero byte */
    }
    for (; length > 1; length /= 2) {
        for (int bit = 0; bit < 32; bit++) {
            uint32_t state = 0;
            for (int from = 0; from < 32; from++)
                if (basis[bit] >> from & 1) state ^= basis[from];
            next[bit] = state;
        }
        memcpy(basis, next, sizeof basis);
    }
    for (int place = 0; place < 4; place++)
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t state = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1) state ^= basis[8 * place + bit];
            moves[place][value] = state;
        }
}

static inline uint32_t fp_crc_moved(uint32_t moves[4][256], uint32_t state) {
    return moves[0][state & 0xFF] ^ moves[1][state >> 8 & 0xFF] ^ moves[2][state >> 16 & 0xFF] ^ moves[3][state >> 24];
}

static uint32_t fp_crc_portable(uint32_t state, const unsigned char *data, size_t length) {
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= state;
        state = fp_crc_table[7][word & 0xFF] ^ fp_crc_table[6][word >> 8 & 0xFF] ^ fp_crc_table[5][word >> 16 & 0xFF] ^
                fp_crc_table[4][word >> 24 & 0xFF] ^ fp_crc_table[3][word >> 32 & 0xFF] ^
                fp_crc_table[2][word >> 40 & 0xFF] ^ fp_crc_table[1][word >> 48 & 0xFF] ^ fp_crc_table[0][word >> 56];
        data += 8;
        length -= 8;
    }
    while (length--) state = fp_crc_table[0][(state ^ *data++) & 0xFF] ^ state >> 8;
    return state;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
#define FP_CRC_NAME "sse4.2"
#define FP_CRC_TARGET __attribute__((target("sse4.2")))
#define FP_CRC_8(state, word) ((uint32_t)_mm_crc32_u64((state), (word)))
#define FP_CRC_1(state, byte) _mm_crc32_u8((state), (byte))
static int fp_crc_has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define FP_CRC_NAME "armv8"
#define FP_CRC_TARGET __attribute__((target("+crc")))
#define FP_CRC_8(state, word) __crc32cd((state), (word))
#define FP_CRC_1(state, byte) __crc32cb((state), (byte))
static int fp_crc_has_instruction(void) { return (getauxval(AT_HWCAP) & (1 << 7)) != 0; } /* HWCAP_CRC32 */
#endif

#ifdef FP_CRC_TARGET
FP_CRC_TARGET static inline uint32_t fp_crc_stretches(
    uint32_t state, const unsigned char *data, size_t length, uint32_t moves[4][256]) {
    uint32_t second = 0, third = 0;
    for (const unsigned char *end = data + length; data < end; data += 8) {
        uint64_t words[3];
        memcpy(&words[0], data, 8);
        memcpy(&words[1], data + length, 8);
        memcpy(&words[2], data + 2 * length, 8);
        state = FP_CRC_8(state, words[0]);
        second = FP_CRC_8(second, words[1]);
        third = FP_CRC_8(third, words[2]);
    }
    state = fp_crc_moved(moves, state) ^ second;
    return fp_crc_moved(moves, state) ^ third;
}

FP_CRC_TARGET static uint32_t fp_crc_instruction(uint32_t state, const unsigned char *data, size_t length) {
    for (; length >= 3 * FP_CRC_LONG; data += 3 * FP_CRC_LONG, length -= 3 * FP_CRC_LONG)
        state = fp_crc_stretches(state, data, FP_CRC_LONG, fp_crc_over_long);
    for (; length >= 3 * FP_CRC_SHORT; data += 3 * FP_CRC_SHORT, length -= 3 * FP_CRC_SHORT)
        state = fp_crc_stretches(state, data, FP_CRC_SHORT, fp_crc_over_short);
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        state = FP_CRC_8(state, word);
    }
    while (length--) state = FP_CRC_1(state, *data++);
    return state;
}
#endif

static fp_crc_fn fp_crc_best = fp_crc_portable;
static const char *fp_crc_best_name = "portable";

static void fp_crc_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int step = 0; step < 8; step++) state = state >> 1 ^ (state & 1 ? FP_CRC_POLYNOMIAL : 0);
        fp_crc_table[0][byte] = state;
    }
    for (int more = 1; more < 8; more++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = fp_crc_table[more - 1][byte];
            fp_crc_table[more][byte] = fp_crc_table[0][before & 0xFF] ^ before >> 8;
        }
    fp_crc_moves(fp_crc_over_long, FP_CRC_LONG);
    fp_crc_moves(fp_crc_over_short, FP_CRC_SHORT);
#ifdef FP_CRC_TARGET
    if (fp_crc_has_instruction()) {
        fp_crc_best = fp_crc_instruction;
        fp_crc_best_name = FP_CRC_NAME;
    }
#endif
}

/* Once in each module that includes this, before anything else of it. */
static void fp_crc32c_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fp_crc_prepare);
}

static inline uint32_t fp_crc32c(uint32_t crc, const void *data, size_t length) {
    return ~fp_crc_best(~crc, (const unsigned char *)data, length);
}

/* Copies and sums up what was copied, block by block: the sum is that of the copy, whatever happens to the source. */
static inline uint32_t fp_crc32c_copy(uint32_t crc, void *target, const void *source, size_t length) {
    unsigned char *to = (unsigned char *)target;
    const unsigned char *from = (const unsigned char *)source;
    uint32_t state = ~crc;
    while (length) {
        size_t block = length < FP_CRC_BLOCK ? length : FP_CRC_BLOCK;
        memcpy(to, from, block);
        state = fp_crc_best(state, to, block);
        to += block;
        from += block;
        length -= block;
    }
    return ~state;
}

#endif
