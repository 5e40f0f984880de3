/* The copy of a long payload into its slot, in four ways. Which is the quickest depends on the processor, on what its
 * caches hold of the slot and on who else has read it, so `CopyChoice` tries them.
 *
 * - FP_PLAIN is that loop: the quickest where the slot is in a near cache and nobody has read it.
 * - FP_AHEAD asks for the lines two pages before it stores to them. Stores become visible in order, so each line that a
 *   reader on another core holds is waited for by all behind it, unless it was fetched before.
 * - FP_PASSING stores past the cache. Where the slot was last touched long ago, an ordinary copy first fetches each line
 *   that it is going to overwrite; this one does not, and readers then fetch the frame from memory. Such stores are not
 *   ordered with others, so a fence stands before the first, which keeps them behind the in-progress word, and one behind
 *   the last, which keeps them before the committed one (Wire 8.3).
 * - FP_STRING is the string instruction, which memcpy uses too. Some processors do not fetch what it overwrites, and then
 *   lines that a reader holds cost half as much or less. Slots begin a superblock behind a page and numpy's arrays 16
 *   bytes behind one: such a pair takes up to twice as long (page aliasing), which a loop does not mind. */
#ifndef FRAMEPOOL_PAYLOAD_H
#define FRAMEPOOL_PAYLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum fp_way
{
    FP_PLAIN,
    FP_AHEAD,
    FP_PASSING,
    FP_STRING,
    FP_WAYS
};

#define FP_AHEAD_BYTES 8192

/* Has the cache fetch a line that will be written, without waiting for it. */
static inline void fp_expect_write(const unsigned char *at)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*at));
#else
    __builtin_prefetch(at, 1, 3);
#endif
}

static inline void fp_expect_writes(const unsigned char *at, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i += 64)
    {
        fp_expect_write(at + i);
    }
}

/* Takes lines from the cores that have read them, without waiting either, by writing what is there. A processor may take
 * no notice of a prefetch for writing where it has the line for reading already; and stores become visible in order, so
 * each such line would be waited for by all behind it. Only for who alone may write there. */
static inline void fp_own_lines(unsigned char *at, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i += 64)
    {
        __atomic_store_n(at + i, __atomic_load_n(at + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    }
}

/* The same as the first for lines that will be read. */
static inline void fp_expect_reads(const unsigned char *at, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i += 64)
    {
        __builtin_prefetch(at + i, 0, 3);
    }
}

#if defined(__SSE2__)
#include <immintrin.h>

/* Lines of the cache, by the load and the store that are named, with something done for each. */
#define FP_COPY_LINES(target, source, begin, end, vector, load, store, extra)                                          \
    for (size_t i = (begin); i < (end); i += 64)                                                                       \
    {                                                                                                                  \
        vector held[64 / sizeof(vector)];                                                                              \
        for (size_t j = 0; j < 64 / sizeof(vector); j++)                                                               \
        {                                                                                                              \
            held[j] = load((const vector *)((source) + i) + j);                                                        \
        }                                                                                                              \
        extra;                                                                                                         \
        for (size_t j = 0; j < 64 / sizeof(vector); j++)                                                               \
        {                                                                                                              \
            store((vector *)((target) + i) + j, held[j]);                                                              \
        }                                                                                                              \
    }

/* Both widths of the same: nothing is asked for beyond the frame. */
#define FP_DEFINE_COPY(attributes, name, vector, load, store, stream)                                                  \
    attributes static void name(unsigned char *to, const unsigned char *from, size_t nbytes, const enum fp_way way)    \
    {                                                                                                                  \
        size_t done = 0;                                                                                               \
        if (FP_PASSING == way)                                                                                         \
        {                                                                                                              \
            FP_COPY_LINES(                                                                                             \
                to, from, 0, nbytes, vector, load, stream, _mm_prefetch((const char *)from + i + 2048, _MM_HINT_T0))   \
            return;                                                                                                    \
        }                                                                                                              \
        if (FP_AHEAD == way && nbytes > FP_AHEAD_BYTES)                                                                \
        {                                                                                                              \
            done = nbytes - FP_AHEAD_BYTES;                                                                            \
            FP_COPY_LINES(to, from, 0, done, vector, load, store, fp_expect_write(to + i + FP_AHEAD_BYTES))            \
        }                                                                                                              \
        FP_COPY_LINES(to, from, done, nbytes, vector, load, store, (void)0)                                            \
    }

FP_DEFINE_COPY(, fp_copy_lines, __m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128)

/* With half as many instructions: a tenth to a fifth faster. */
FP_DEFINE_COPY(
    __attribute__((target("avx2"))), fp_copy_lines_avx2, __m256i, _mm256_loadu_si256, _mm256_store_si256,
    _mm256_stream_si256)

/* A payload into its slot, which begins at a line of the cache. */
static inline void fp_copy_payload(unsigned char *to, const unsigned char *from, size_t nbytes, const enum fp_way way)
{
    const size_t lines = 0 == ((uintptr_t)to & 31) ? nbytes & ~(size_t)63 : 0;

    if (FP_STRING == way)
    {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(nbytes) : : "memory");
        return;
    }
    if (FP_PASSING == way)
    {
        _mm_sfence();
    }
    if (__builtin_cpu_supports("avx2"))
    {
        fp_copy_lines_avx2(to, from, lines, way);
    }
    else
    {
        fp_copy_lines(to, from, lines, way);
    }
    if (FP_PASSING == way)
    {
        _mm_sfence();
    }
    memcpy(to + lines, from + lines, nbytes - lines);
}
#else
static inline void fp_copy_payload(unsigned char *to, const unsigned char *from, size_t nbytes, const enum fp_way way)
{
    (void)way;
    memcpy(to, from, nbytes);
}
#endif

#endif
