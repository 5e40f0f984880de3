/* One writer laps readers on a ring of one slot, in threads, through _native/seqlock.h: no frame that a reader accepts is
 * torn. Compiled plainly it is a stress run; with -fsanitize=thread it also shows that nothing but the copies between
 * the two looks races.
 *
 *     seqlock_stress MILLISECONDS READERS
 *
 * prints accepted, dropped and torn. The two copies race by design: `copy_in` and `copy_out` are the only functions that
 * touch the payload while others may, and the only names in the suppressions of the test. ThreadSanitizer knows nothing of
 * fences and would call what is ordered by one a race as well; what it is to judge is what happens to an accepted frame
 * afterwards, and all else that the threads share. BROKEN_* leave a step out, to see that it is noticed. */
#define _GNU_SOURCE
#include "seqlock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORDS 256

static struct {
    _Alignas(64) uint64_t word;
    uint64_t payload[WORDS];
} slot;

static atomic_bool ended;
static atomic_uint_fast64_t newest;

typedef struct {
    pthread_t thread;
    uint64_t accepted, dropped, torn;
} reader_t;

__attribute__((noinline)) static void copy_in(uint64_t *target, const uint64_t *source)
{
    memcpy(target, source, sizeof slot.payload);
}

__attribute__((noinline)) static void copy_out(uint64_t *target, const uint64_t *source)
{
    memcpy(target, source, sizeof slot.payload);
}

static void *write_frames(void *unused)
{
    uint64_t frame[WORDS];
    (void)unused;
    for (uint64_t seq = 1; !atomic_load_explicit(&ended, memory_order_relaxed); seq++)
    {
        for (int i = 0; i < WORDS; i++)
        {
            frame[i] = seq;
        }
#ifndef BROKEN_BEGIN
        fp_slot_begin(&slot.word, seq);
#endif
        copy_in(slot.payload, frame);
        fp_slot_commit(&slot.word, seq);
        atomic_store_explicit(&newest, seq, memory_order_release);
        for (volatile int pause = 0; pause < (seq & 7 ? 0 : 2000); pause++)
        {
        }
    }
    return NULL;
}

static void *read_frames(void *arg)
{
    reader_t *reader = arg;
    uint64_t frame[WORDS];
    while (!atomic_load_explicit(&ended, memory_order_relaxed))
    {
        const uint64_t seq = atomic_load_explicit(&newest, memory_order_acquire);
        if (fp_slot_look(&slot.word) != (seq << 1 | 1))
        {
            reader->dropped++;
            continue;
        }
        copy_out(frame, slot.payload);
#ifndef BROKEN_SECOND_LOOK
        if (fp_slot_look_again(&slot.word) != (seq << 1 | 1))
        {
            reader->dropped++;
            continue;
        }
#endif
        bool whole = true;
        for (int i = 0; i < WORDS; i++)
        {
            whole = whole && frame[i] == seq;
        }
        reader->accepted += whole;
        reader->torn += !whole;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const long milliseconds = argc > 1 ? atol(argv[1]) : 1000;
    const int count = argc > 2 ? atoi(argv[2]) : 2;
    const struct timespec length = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    reader_t *readers = calloc((size_t)count, sizeof *readers);
    uint64_t accepted = 0, dropped = 0, torn = 0;
    pthread_t writer;
    pthread_create(&writer, NULL, write_frames, NULL);
    for (int i = 0; i < count; i++)
    {
        pthread_create(&readers[i].thread, NULL, read_frames, &readers[i]);
    }
    nanosleep(&length, NULL);
    atomic_store(&ended, true);
    pthread_join(writer, NULL);
    for (int i = 0; i < count; i++)
    {
        pthread_join(readers[i].thread, NULL);
        accepted += readers[i].accepted;
        dropped += readers[i].dropped;
        torn += readers[i].torn;
    }
    printf("{\"accepted\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"torn\": %" PRIu64 "}\n", accepted, dropped, torn);
    free(readers);
    return torn != 0;
}
