/* Pages of a log that are there before they are written to or read.
 *
 * Aeron's logs are sparse files of three terms. On the first lap the first message of each page makes whoever sends it
 * wait for a page of memory, and whoever reads it for a place in its tables: one frame in forty on either side. So who
 * is in a chunk has the next one made while nobody waits: who sends after the message, who reads when there is no
 * other.
 *
 * The kernel is asked, the pages are not touched: where shared memory is full, nothing happens. Who sends little takes
 * no page more than it fills.
 */
#ifndef FRAMEPOOL_AERON_AHEAD_H
#define FRAMEPOOL_AERON_AHEAD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define FP_AHEAD_CHUNK (64 * 1024) /* no longer than a term, and a divisor of each */
#define FP_AHEAD_MIDDLE (4 * 1024) /* of a chunk: readers of several logs are at one of them now and then only */
#define FP_AHEAD_TERMS 3
#define FP_AHEAD_NEVER INT64_MAX
#define FP_AHEAD_HEADER 32 /* before the payload of a message; what begins in a log begins at multiples of it */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

typedef struct
{
    int64_t next; /* position from which on there is something to do; 0: nothing was sent yet */
    int64_t end;  /* by then the log has been gone through */
}
fp_ahead_t;

static inline void fp_ahead_step(fp_ahead_t *ahead, uint8_t *payload, size_t length, int64_t position, int64_t term)
{
    const int64_t log = FP_AHEAD_TERMS * term;
    const int64_t begin = position - (int64_t)((FP_AHEAD_HEADER + length + 31) & ~(size_t)31);
    const int64_t chunk = (begin / FP_AHEAD_CHUNK + 1) * FP_AHEAD_CHUNK;
    const bool first = 0 == ahead->next;
    uint8_t *base = payload - FP_AHEAD_HEADER - begin % log;

    ahead->end = first ? begin + log : ahead->end;
    ahead->next = chunk;
    if (!first && (chunk >= ahead->end || 0 != madvise(base + chunk % log, FP_AHEAD_CHUNK, MADV_POPULATE_WRITE)))
    {
        ahead->next = FP_AHEAD_NEVER;
    }
}

/* A message was sent, whose payload is there in the log and which ends at a position. */
static inline void fp_ahead_sent(fp_ahead_t *ahead, uint8_t *payload, size_t length, int64_t position, int64_t term)
{
    if (position > ahead->next)
    {
        fp_ahead_step(ahead, payload, length, position, term);
    }
}

/* The same for a reader, within each term, and later: the pages are locked while the sender has them made. */
typedef struct
{
    int64_t term; /* bytes of the shortest one that is read from; 0 for who does not look ahead */
    const uint8_t *chunk; /* that was begun last */
    const uint8_t *next;  /* to be looked at; NULL: nothing */
}
fp_ahead_read_t;

/* A message was read whose header is there in the log, at an offset in its term. */
static inline void fp_ahead_read(fp_ahead_read_t *ahead, const uint8_t *header, int32_t offset)
{
    const int32_t into = offset % FP_AHEAD_CHUNK;
    const int32_t beyond = into - FP_AHEAD_CHUNK / 2;

    if (0 <= beyond && beyond < FP_AHEAD_MIDDLE && header - into != ahead->chunk &&
        offset <= ahead->term - 2 * FP_AHEAD_CHUNK)
    {
        ahead->chunk = header - into;
        ahead->next = ahead->chunk + FP_AHEAD_CHUNK;
    }
}

/* There is nothing to be read. */
static inline void fp_ahead_look(fp_ahead_read_t *ahead)
{
    if (NULL != ahead->next)
    {
        if (0 != madvise((void *)ahead->next, FP_AHEAD_CHUNK, MADV_POPULATE_READ))
        {
            ahead->term = 0;
        }
        ahead->next = NULL;
    }
}

#endif
