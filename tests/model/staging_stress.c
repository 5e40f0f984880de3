/* The ring between a recorder's thread and its disk's, in threads, through _native/recording.h: bytes come out as they
 * went in, and with -fsanitize=thread nothing races: no copy here is meant to.
 *
 *     staging_stress MILLISECONDS
 *
 * BROKEN_POSITION publishes the position with a plain store, to see that it is noticed. */
#define _GNU_SOURCE
#include "recording.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CAPACITY 65536u
#define PIECE 192u

static unsigned char *base;
static uint64_t ready, tail;
static atomic_bool ended;
static uint64_t pieces, wrong;

#ifdef BROKEN_POSITION
static void publish(uint64_t *position, uint64_t value) { *(volatile uint64_t *)position = value; }
#else
static void publish(uint64_t *position, uint64_t value) { fp_set_position(position, value); }
#endif

static void *add(void *unused)
{
    uint64_t head = 0;
    (void)unused;
    while (!atomic_load_explicit(&ended, memory_order_relaxed))
    {
        if (PIECE <= CAPACITY - (head - fp_position(&tail)))
        {
            memset(base + head % CAPACITY, (int)(head / PIECE & 0xff), PIECE);
            head += PIECE;
            publish(&ready, head);
        }
    }
    return NULL;
}

static void *take(void *unused)
{
    unsigned char piece[PIECE];
    uint64_t at = 0;
    (void)unused;
    while (!atomic_load_explicit(&ended, memory_order_relaxed))
    {
        for (const uint64_t end = fp_position(&ready); at < end; at += PIECE, pieces++)
        {
            memcpy(piece, base + at % CAPACITY, PIECE);
            for (unsigned i = 0; i < PIECE; i++)
            {
                wrong += piece[i] != (at / PIECE & 0xff);
            }
        }
        fp_set_position(&tail, at);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const long milliseconds = argc > 1 ? atol(argv[1]) : 1000;
    const struct timespec length = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    pthread_t adder, taker;
    base = fp_map_twice(CAPACITY);
    if (NULL == base)
    {
        return 2;
    }
    pthread_create(&adder, NULL, add, NULL);
    pthread_create(&taker, NULL, take, NULL);
    nanosleep(&length, NULL);
    atomic_store(&ended, true);
    pthread_join(adder, NULL);
    pthread_join(taker, NULL);
    fp_unmap_twice(base, CAPACITY);
    printf("{\"pieces\": %" PRIu64 ", \"wrong\": %" PRIu64 "}\n", pieces, wrong);
    return wrong != 0;
}
