/* Naps that end together.
 *
 * Whoever looks around now and then interrupts who moves frames on the same processor, and a dozen threads that each
 * keep a time of their own are a dozen interruptions. So naps of some length end at instants that are the same for all
 * processes of the machine; and there the kernel may be a little late, which lets it end them in the interrupt that a
 * busy processor has anyway. What is due sooner is left as it is.
 */
#ifndef FRAMEPOOL_NAP_H
#define FRAMEPOOL_NAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>

#define FP_NAP_GRID_NS 16000000LL /* naps from here on end at multiples of it, or of twice, four times, … of it */
#define FP_NAP_EARLY_NS 100000LL  /* so much before them: ticks come right then, and a wait may begin a little late */
#define FP_NAP_LATE_NS 4000000UL  /* and so much later: a busy processor is interrupted as often, with 250 ticks a second */

static int64_t fp_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct timespec fp_timespec(int64_t ns)
{
    const struct timespec result = { .tv_sec = ns / 1000000000LL, .tv_nsec = ns % 1000000000LL };
    return result;
}

/* How exactly the kernel ends what this thread sleeps through. */
static void fp_nap_exactly(bool exactly)
{
    static _Thread_local bool late;

    if (late == exactly)
    {
        late = !exactly;
        prctl(PR_SET_TIMERSLACK, late ? FP_NAP_LATE_NS : 0UL, 0UL, 0UL, 0UL); /* 0 is what the thread had at first */
    }
}

/* The longest of the grids that is no longer than a span; 0 for a short one. */
static int64_t fp_nap_grid(int64_t span_ns, int64_t most_ns)
{
    int64_t grid = FP_NAP_GRID_NS;

    while (2 * grid <= span_ns && 2 * grid <= most_ns)
    {
        grid *= 2;
    }
    return span_ns < grid || most_ns < grid ? 0 : grid;
}

/* When a nap of at most `nap_ns` is to end that this thread begins now, on CLOCK_MONOTONIC. */
static int64_t fp_nap_until(int64_t now, int64_t nap_ns)
{
    const int64_t grid = fp_nap_grid(nap_ns, INT64_MAX);

    fp_nap_exactly(0 == grid);
    return 0 == grid ? now + nap_ns : (now + nap_ns + FP_NAP_EARLY_NS) / grid * grid - FP_NAP_EARLY_NS;
}

/* When a wait of at least `wait_ns` is over, if nobody minds that it is one nap of at most `nap_ns` longer. */
static int64_t fp_wait_until(int64_t now, int64_t wait_ns, int64_t nap_ns)
{
    const int64_t grid = fp_nap_grid(wait_ns, nap_ns);

    return 0 == grid ? now + wait_ns : (now + wait_ns + FP_NAP_EARLY_NS + grid - 1) / grid * grid - FP_NAP_EARLY_NS;
}

#endif
