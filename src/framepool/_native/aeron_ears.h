/* Waiting, without the interpreter's lock, until one of several subscriptions has something to say.
 *
 * Aeron wakes nobody. So the one who waits naps and looks, and a look leaves everything where it is: the fragment handler
 * refuses what it is shown. What is then to be done takes the interpreter, which another thread may have: see
 * `fp_turn_t`. Include after aeron_drain.h.
 */
#ifndef FRAMEPOOL_AERON_EARS_H
#define FRAMEPOOL_AERON_EARS_H

#include <poll.h>

typedef struct
{
    pthread_mutex_t mutex; /* held by whoever polls or looks */
    aeron_subscription_t *subscription; /* NULL: there is none right now */
    fp_report_t *report;
}
fp_ear_t;

static aeron_controlled_fragment_handler_action_t fp_ear_refuse(
    void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header)
{
    (void)buffer;
    (void)length;
    (void)header;
    *(bool *)clientd = true;
    return AERON_ACTION_ABORT;
}

/* Whether it is worth a poll: also where a subscription is to be had anew first. */
static bool fp_ear_hears(fp_ear_t *ear)
{
    bool found = true;

    pthread_mutex_lock(&ear->mutex);
    if (NULL != ear->subscription && 0 == fp_report_lost(ear->report))
    {
        found = false;
        fp_api.aeron_subscription_controlled_poll(ear->subscription, fp_ear_refuse, &found, 1);
    }
    pthread_mutex_unlock(&ear->mutex);
    return found;
}

static void fp_ear_point(fp_ear_t *ear, aeron_subscription_t *subscription, fp_report_t *report)
{
    pthread_mutex_lock(&ear->mutex);
    ear->subscription = subscription;
    ear->report = report;
    pthread_mutex_unlock(&ear->mutex);
}

/* A turn for the interpreter, that a waiting thread offers to the threads which have it anyway. One that computes or moves
 * frames in a loop would otherwise be stopped for it, and wait until the other thread has had a processor: milliseconds
 * where the processors are busy. Who takes the turn does the work and says when the next one is due.
 *
 * Between OFFERED and TAKEN is one exchange, which either side may win. What stands below `until_ns` belongs to the taker
 * while it is TAKEN, and to the waiting thread otherwise. */
enum fp_turn_state
{
    FP_TURN_NONE,
    FP_TURN_OFFERED,
    FP_TURN_TAKEN,
    FP_TURN_DONE
};

#define FP_TURN_PATIENCE_NS 2000000LL
#define FP_TURN_MOST_SKIPPED 63 /* turns that are not offered after so many offers that nobody took */

typedef struct
{
    bool wanted; /* there are threads who may take one */
    int event_fd;
    atomic_bool nudged;
    atomic_int state;
    atomic_int_least64_t until_ns; /* when the next turn is due */
    bool busy;        /* something goes on: look often */
    bool undone;      /* the rest is for the waiting thread itself */
    unsigned left;    /* turns until the next offer */
    unsigned skipped; /* turns between the last offer that nobody took and the next */
}
fp_turn_t;

/* Whether it is worth a call of `fp_turn_take`. */
static inline bool fp_turn_is_offered(fp_turn_t *turn)
{
    return FP_TURN_OFFERED == atomic_load_explicit(&turn->state, memory_order_relaxed);
}

static bool fp_turn_take(fp_turn_t *turn)
{
    int offered = FP_TURN_OFFERED;
    return atomic_compare_exchange_strong(&turn->state, &offered, FP_TURN_TAKEN);
}

static void fp_turn_signal(fp_turn_t *turn)
{
    const uint64_t one = 1;
    ssize_t ignored = write(turn->event_fd, &one, sizeof(one)); /* full means: already readable */
    (void)ignored;
}

static void fp_turn_done(fp_turn_t *turn, int64_t rest_ns, bool busy, bool undone)
{
    atomic_store(&turn->until_ns, fp_now_ns() + rest_ns);
    turn->busy = busy;
    turn->undone = undone;
    atomic_store_explicit(&turn->state, FP_TURN_DONE, memory_order_release);
    fp_turn_signal(turn);
}

/* The next turn is due in so long, if not earlier. */
static void fp_turn_hurry(fp_turn_t *turn, int64_t rest_ns)
{
    const int64_t until_ns = fp_now_ns() + rest_ns;
    int_least64_t before = atomic_load(&turn->until_ns);

    while (until_ns < before && !atomic_compare_exchange_weak(&turn->until_ns, &before, until_ns))
    {
    }
}

static void fp_turn_nudge(fp_turn_t *turn)
{
    atomic_store(&turn->nudged, true);
    fp_turn_signal(turn);
}

/* Sleeps until there is a signal, which it takes away, or the time is over. */
static void fp_turn_nap(fp_turn_t *turn, int64_t duration_ns)
{
    struct pollfd waited = { .fd = turn->event_fd, .events = POLLIN };
    const struct timespec span = { .tv_sec = duration_ns / 1000000000LL, .tv_nsec = duration_ns % 1000000000LL };
    uint64_t value;

    if (ppoll(&waited, 1, &span, NULL) > 0)
    {
        ssize_t ignored = read(turn->event_fd, &value, sizeof(value));
        (void)ignored;
    }
}

/* Whether somebody took the turn and did all of it. Where nobody takes what is offered, it is offered less often. */
static bool fp_turn_offer(fp_turn_t *turn)
{
    int offered = FP_TURN_OFFERED;

    if (!turn->wanted || turn->left > 0)
    {
        turn->left -= turn->left > 0;
        return false;
    }
    atomic_store(&turn->state, FP_TURN_OFFERED);
    fp_turn_nap(turn, FP_TURN_PATIENCE_NS);
    if (atomic_compare_exchange_strong(&turn->state, &offered, FP_TURN_NONE))
    {
        turn->skipped = turn->skipped < FP_TURN_MOST_SKIPPED ? 2 * turn->skipped + 1 : FP_TURN_MOST_SKIPPED;
        turn->left = turn->skipped;
        return false;
    }
    while (FP_TURN_DONE != atomic_load_explicit(&turn->state, memory_order_acquire))
    {
        fp_turn_nap(turn, FP_TURN_PATIENCE_NS);
    }
    atomic_store(&turn->state, FP_TURN_NONE);
    turn->skipped = 0;
    return !turn->undone;
}

/* Naps, twice as long each time up to `most_ns`, until there is something to hear (1), it is nudged (2) or the time
 * is over (0). It naps at least once, if there is time. */
static int fp_ears_listen(fp_ear_t **ears, size_t count, fp_turn_t *turn, int64_t *nap_ns, int64_t most_ns)
{
    for (;;)
    {
        const int64_t left = atomic_load(&turn->until_ns) - fp_now_ns();
        if (left > 0)
        {
            fp_turn_nap(turn, *nap_ns < left ? *nap_ns : left);
        }
        if (atomic_exchange(&turn->nudged, false))
        {
            return 2;
        }
        if (left <= 0)
        {
            return 0;
        }
        *nap_ns = 2 * *nap_ns < most_ns ? 2 * *nap_ns : most_ns;
        for (size_t i = 0; i < count; i++)
        {
            if (fp_ear_hears(ears[i]))
            {
                return 1;
            }
        }
    }
}

/* The same, with turns that others take in between, each of which says how long to listen then; 1 or 0. */
static int fp_ears_wait(
    fp_ear_t **ears, size_t count, fp_turn_t *turn, int64_t timeout_ns, int64_t *nap_ns, int64_t least_ns,
    int64_t most_ns)
{
    atomic_store(&turn->until_ns, fp_now_ns() + timeout_ns);
    for (;;)
    {
        const int heard = fp_ears_listen(ears, count, turn, nap_ns, most_ns);
        if (2 == heard || !fp_turn_offer(turn))
        {
            return 0 != heard;
        }
        if (turn->busy)
        {
            *nap_ns = least_ns;
        }
    }
}

#endif
