/* A log whose file ends early: touching what is behind the end is fatal, as it is where shared memory is full. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "aeron_ahead.h"

#define TERM (1024 * 1024)
#define CHECK(condition) \
    do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); return 1; } } while (0)

static bool there(const uint8_t *page)
{
    unsigned char found = 0;
    return 0 == mincore((void *)page, 4096, &found) && (found & 1);
}

int main(void)
{
    const int fd = memfd_create("log", 0);
    CHECK(0 == ftruncate(fd, 2 * FP_AHEAD_CHUNK));
    uint8_t *log = mmap(NULL, FP_AHEAD_TERMS * TERM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(MAP_FAILED != log);

    /* what was begun is not made ahead, the chunk behind it is */
    fp_ahead_t ahead = { 0 };
    fp_ahead_sent(&ahead, log + 32, 8, 64, TERM);
    CHECK(!there(log) && FP_AHEAD_CHUNK == ahead.next);
    fp_ahead_sent(&ahead, log + FP_AHEAD_CHUNK - 64 + 32, 32, FP_AHEAD_CHUNK, TERM);
    CHECK(!there(log + FP_AHEAD_CHUNK));
    ahead.next = 0; /* as if the first message began in the chunk before: the next one is the file's last */
    fp_ahead_sent(&ahead, log + 32, 8, 64, TERM);
    ahead.next = 1;
    fp_ahead_sent(&ahead, log + 64 + 32, 8, 128, TERM);
    CHECK(there(log + FP_AHEAD_CHUNK) && there(log + 2 * FP_AHEAD_CHUNK - 4096) && !there(log));

    /* behind the end of the file there is nothing to be had, and nobody asks again */
    fp_ahead_sent(&ahead, log + FP_AHEAD_CHUNK + 32, 8, FP_AHEAD_CHUNK + 64, TERM);
    CHECK(FP_AHEAD_NEVER == ahead.next);

    /* nor once the log was gone through */
    fp_ahead_t lap = { .next = FP_AHEAD_TERMS * TERM - FP_AHEAD_CHUNK, .end = FP_AHEAD_TERMS * TERM };
    const int64_t last = FP_AHEAD_TERMS * TERM - FP_AHEAD_CHUNK;
    fp_ahead_sent(&lap, log + last + 32, 8, last + 64, TERM);
    CHECK(FP_AHEAD_NEVER == lap.next && !there(log));

    /* a reader looks in the middle of a chunk, once, and not beyond its term */
    fp_ahead_read_t reader = { .term = TERM };
    const int32_t middle = FP_AHEAD_CHUNK / 2;
    fp_ahead_read(&reader, log, 0);
    CHECK(NULL == reader.next);
    fp_ahead_read(&reader, log + middle, middle);
    CHECK(log + FP_AHEAD_CHUNK == reader.next);
    fp_ahead_look(&reader);
    CHECK(NULL == reader.next && TERM == reader.term);
    fp_ahead_read(&reader, log + middle + 96, middle + 96);
    CHECK(NULL == reader.next);
    const int32_t late = TERM - FP_AHEAD_CHUNK + middle;
    fp_ahead_read(&reader, log + late, late);
    CHECK(NULL == reader.next);
    fp_ahead_read(&reader, log + FP_AHEAD_CHUNK + middle, FP_AHEAD_CHUNK + middle);
    fp_ahead_look(&reader);
    CHECK(0 == reader.term); /* refused: behind the end of the file */

    puts("ok");
    return 0;
}
