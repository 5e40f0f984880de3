/* How Aeron's threads wait when they have nothing to do. Aeron finds a strategy by the name of a symbol.
 *
 * Its own back-off wakes a thread ten thousand times a second while descriptors flow, because each turn finds that a
 * limit has to be moved; and a thousand times when nothing happens at all. Both cost the programs on the same cores.
 * What needs no haste here naps between turns and dozes when nothing comes; only the network's threads are eager, and
 * only while something comes. A thread that is new does not doze yet: whoever starts it wants a dozen things of it, one
 * after the other. A client's thread is woken when this process asks for something, and does not doze for a while. */
#ifndef FRAMEPOOL_AERON_IDLE_H
#define FRAMEPOOL_AERON_IDLE_H

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "nap.h"

#define FP_IDLE_YOUNG_NS 1000000000LL /* for which a thread is new: no nap is longer than the shortest of its manner */
#define FP_IDLE_ASKED_NS 100000000LL /* the same, for a client's thread after something was asked for */
#define FP_IDLE_MANY_PACKETS 8 /* turns of the network that found something, since the last nap */

typedef struct
{
    uint32_t turns;      /* at once after one that found something; 0 is no limit */
    uint32_t yields;     /* turns after them that let others run first */
    uint32_t naps;       /* before they grow beyond the middle length */
    int64_t shortest_ns; /* of a nap; each is twice as long as the one before */
    int64_t middle_ns;
    int64_t longest_ns;
    bool modest;         /* waits for its turn instead of interrupting what runs: see framepool.agent.priority */
    bool timed;          /* has timers: what it finds now and then is no reason for haste */
    bool packets;        /* what the network's threads receive waits for it: windows, and what was lost */
    bool answers;        /* brings what this process asked for: see fp_idle_ask */
} fp_idle_manner_t;

typedef struct
{
    fp_idle_manner_t manner;
    bool begun;
    uint32_t busy;
    uint32_t yielded;
    uint32_t napped;
    int64_t young_until_ns;
    int64_t young_nap_ns; /* the longest until then */
    int64_t nap_ns;
    unsigned packets;    /* turns of the network that found something, when this one napped last */
    int64_t worked_ns;   /* when something was found last; of who has timers */
    unsigned asked;      /* how often something had been asked for, when this one looked last */
} fp_idle_t;

/* Moves limits, hears clients and watches timeouts. Half a term of descriptors lasts for tens of milliseconds. */
static const fp_idle_manner_t fp_idle_conductor_manner = {
    .turns = 8, .yields = 0, .naps = 0, .shortest_ns = 1000000, .middle_ns = 1000000, .longest_ns = 32000000,
    .modest = true, .timed = true, .packets = true};
/* Opens logs and addresses for the conductor, which waits for it. */
static const fp_idle_manner_t fp_idle_resources_manner = {
    .turns = 8, .yields = 0, .naps = 0, .shortest_ns = 250000, .middle_ns = 250000, .longest_ns = 32000000,
    .modest = true};
/* Sends and receives packets. */
static const fp_idle_manner_t fp_idle_network_manner = {
    .turns = 0, .yields = 20, .naps = 1000, .shortest_ns = 1000, .middle_ns = 1000000, .longest_ns = 40000000};
/* Hears the media driver. */
static const fp_idle_manner_t fp_idle_client_manner = {
    .turns = 8, .yields = 0, .naps = 0, .shortest_ns = 1000000, .middle_ns = 1000000, .longest_ns = 32000000,
    .modest = true, .timed = true, .answers = true};

/* Turns of the network's threads that found something. */
static atomic_uint fp_idle_packets;

/* `arguments` is the length of the first nap in nanoseconds, or something else: a default of Aeron's for a strategy of
 * its own. The other lengths keep their proportion to it, but for those of a client's thread: what others do, such as
 * a publication that begins, is noticed as soon. */
static int fp_idle_init(void **state, const char *arguments, const fp_idle_manner_t *manner)
{
    fp_idle_t *idle = calloc(1, sizeof(fp_idle_t)); /* Aeron frees it */
    if (NULL == idle)
    {
        return -1;
    }
    idle->manner = *manner;
    char *end = NULL;
    int64_t first = NULL == arguments ? 0 : strtoll(arguments, &end, 10);
    if (first > 0 && '\0' == *end)
    {
        idle->manner.shortest_ns = first;
        idle->manner.middle_ns = first * (manner->middle_ns / manner->shortest_ns);
        idle->manner.longest_ns = first * (manner->longest_ns / manner->shortest_ns);
        if (manner->answers)
        {
            idle->manner.longest_ns = first < manner->longest_ns ? manner->longest_ns : first;
        }
    }
    idle->nap_ns = idle->manner.shortest_ns;
    idle->young_nap_ns = manner->shortest_ns;
    *state = idle;
    return 0;
}

/* The next nap of who has timers, after a turn that found something. One that fires is such a turn, each 20 ms, and makes
 * nobody eager at once; what comes quicker than that does: somebody is being served. */
static int64_t fp_idle_timed(fp_idle_t *idle)
{
    const int64_t shortest = idle->manner.shortest_ns;
    const int64_t now = fp_now_ns();
    const int64_t since = now - idle->worked_ns;
    idle->worked_ns = now;
    return since > 16 * shortest && idle->nap_ns > 2 * shortest ? idle->nap_ns / 2 : shortest;
}

/* How long this nap is; the next one is twice as long. */
static int64_t fp_idle_nap(fp_idle_t *idle)
{
    const fp_idle_manner_t *manner = &idle->manner;
    const unsigned packets = atomic_load_explicit(&fp_idle_packets, memory_order_relaxed);
    if (manner->packets && packets != idle->packets)
    {
        const bool many = packets - idle->packets >= FP_IDLE_MANY_PACKETS;
        idle->packets = packets;
        idle->nap_ns = manner->shortest_ns;
        if (many) /* a window lasts for less than the shortest nap */
        {
            return manner->shortest_ns / 16;
        }
    }
    int64_t nap = idle->nap_ns;
    int64_t limit = idle->napped < manner->naps ? manner->middle_ns : manner->longest_ns;
    idle->napped += idle->napped < manner->naps;
    idle->nap_ns = 2 * nap < limit ? 2 * nap : limit;
    if (nap > idle->young_nap_ns && 0 != idle->young_until_ns)
    {
        if (fp_now_ns() < idle->young_until_ns)
        {
            return idle->young_nap_ns;
        }
        idle->young_until_ns = 0;
    }
    return nap;
}

static pthread_mutex_t fp_idle_mutex;
static pthread_cond_t fp_idle_changed; /* on CLOCK_MONOTONIC */
static unsigned fp_idle_asked; /* guarded by the mutex */

/* Also in a forked child: it inherits a condition that threads wait on which are not there. */
static void fp_idle_begin(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&fp_idle_changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&fp_idle_mutex, NULL);
}

/* Something was asked of a media driver, whose answer a client's thread brings. */
static void fp_idle_ask(void)
{
    pthread_mutex_lock(&fp_idle_mutex);
    fp_idle_asked++;
    pthread_cond_broadcast(&fp_idle_changed);
    pthread_mutex_unlock(&fp_idle_mutex);
}

/* A nap that ends when something is asked for. */
static void fp_idle_wait(fp_idle_t *idle, int64_t nap_ns)
{
    const struct timespec deadline = fp_timespec(fp_nap_until(fp_now_ns(), nap_ns));
    int error = 0;

    pthread_mutex_lock(&fp_idle_mutex);
    while (0 == error && fp_idle_asked == idle->asked)
    {
        error = pthread_cond_timedwait(&fp_idle_changed, &fp_idle_mutex, &deadline);
    }
    const bool asked = fp_idle_asked != idle->asked;
    idle->asked = fp_idle_asked;
    pthread_mutex_unlock(&fp_idle_mutex);
    if (asked)
    {
        idle->nap_ns = idle->manner.shortest_ns;
        const int64_t young_until_ns = fp_now_ns() + FP_IDLE_ASKED_NS;
        idle->young_until_ns = young_until_ns > idle->young_until_ns ? young_until_ns : idle->young_until_ns;
    }
}

static void fp_idle_turn(void *state, int work)
{
    fp_idle_t *idle = state;
    const fp_idle_manner_t *manner = &idle->manner;
    if (!idle->begun) /* only now is this the thread that it is for */
    {
        idle->begun = true;
        idle->young_until_ns =
            manner->modest ? fp_now_ns() + (manner->answers ? FP_IDLE_ASKED_NS : FP_IDLE_YOUNG_NS) : 0;
        if (manner->modest && SCHED_OTHER == sched_getscheduler(0))
        {
            const struct sched_param none = {.sched_priority = 0};
            sched_setscheduler(0, SCHED_BATCH, &none);
        }
    }
    if (work > 0)
    {
        if (!manner->modest)
        {
            atomic_fetch_add_explicit(&fp_idle_packets, 1, memory_order_relaxed);
        }
        idle->yielded = idle->napped = 0;
        idle->nap_ns = manner->timed ? fp_idle_timed(idle) : manner->shortest_ns;
        if (0 == manner->turns || idle->busy++ < manner->turns)
        {
            return;
        }
    }
    idle->busy = 0;
    if (idle->yielded < manner->yields)
    {
        idle->yielded++;
        sched_yield();
        return;
    }
    const int64_t nap_ns = fp_idle_nap(idle);
    if (manner->answers)
    {
        fp_idle_wait(idle, nap_ns);
        return;
    }
    const struct timespec until = fp_timespec(fp_nap_until(fp_now_ns(), nap_ns));
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

#define FP_IDLE_STRATEGY(name) \
    static int fp_idle_##name##_init(void **state, const char *variable, const char *arguments) \
    { \
        (void)variable; \
        return fp_idle_init(state, arguments, &fp_idle_##name##_manner); \
    } \
    __attribute__((visibility("default"))) struct \
    { \
        void (*idle)(void *state, int work); \
        int (*init)(void **state, const char *variable, const char *arguments); \
    } framepool_idle_##name = {fp_idle_turn, fp_idle_##name##_init};

FP_IDLE_STRATEGY(conductor)
FP_IDLE_STRATEGY(resources)
FP_IDLE_STRATEGY(network)
FP_IDLE_STRATEGY(client)
#undef FP_IDLE_STRATEGY

/* Makes these names visible to Aeron, which looks among the global ones. */
static int fp_idle_export(void)
{
    Dl_info here;
    fp_idle_begin();
    return 0 == pthread_atfork(NULL, NULL, fp_idle_begin) && 0 != dladdr(&framepool_idle_conductor, &here) &&
        NULL != dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) ? 0 : -1;
}

#endif
