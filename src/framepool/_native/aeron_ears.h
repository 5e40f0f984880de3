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

/* Turns for the interpreter, that a waiting thread leaves to threads which have it anyway, if these come by thousands of
 * times a second: one that moves frames in a loop would otherwise be stopped for a turn, and wait until the other thread
 * has had a processor, milliseconds where the processors are busy. Those who come by also do the looking (WATCHED), so
 * nobody is woken for it: the waiting thread only sees now and then whether they still come. Whoever pauses between frames
 * is left alone: the waiting thread finds the interpreter free.
 *
 * From WATCHED to LOOKING is one exchange, and the waiting thread takes WATCHED back by another. What stands below
 * `hurried_ns` belongs to who is LOOKING or has TAKEN the turn, and to the waiting thread otherwise. Whoever looks or
 * takes holds the interpreter. */
enum fp_turn_state
{
    FP_TURN_NONE,
    FP_TURN_WATCHED,
    FP_TURN_LOOKING,
    FP_TURN_TAKEN,
    FP_TURN_UNDONE /* the rest is for the waiting thread itself */
};

#define FP_TURN_LOOKS_NS 2000000LL /* between two looks of those who come by */
#define FP_TURN_APART_NS 250000LL /* at the most between them, on an average */
#define FP_TURN_LEAST_CALLS 8 /* for an average */
#define FP_TURN_CALLS 16 /* for each of which somebody looks at the clock */
#define FP_TURN_WATCHED_NS 64000000LL /* until the waiting thread sees whether they still come */

typedef struct
{
    bool wanted; /* there are threads who may take one */
    int event_fd;
    atomic_bool nudged;
    atomic_int state;
    atomic_int_least64_t until_ns; /* when the next turn is due */
    atomic_int_least64_t hurried_ns; /* and by when at the latest: see fp_turn_hurry; INT64_MAX: nobody said so */
    atomic_uint calls; /* of who came by */
    int64_t look_ns; /* when they are to look next; theirs */
    fp_ear_t **ears;
    size_t count;
}
fp_turn_t;

static void fp_turn_init(fp_turn_t *turn)
{
    atomic_store(&turn->hurried_ns, INT64_MAX);
}

static void fp_turn_signal(fp_turn_t *turn)
{
    const uint64_t one = 1;
    ssize_t ignored = write(turn->event_fd, &one, sizeof(one)); /* full means: already readable */
    (void)ignored;
}

static void fp_turn_done(fp_turn_t *turn, int64_t rest_ns, bool busy, bool undone)
{
    const int64_t now = fp_now_ns();
    atomic_store(&turn->until_ns, now + rest_ns);
    turn->look_ns = now + (busy ? FP_TURN_LOOKS_NS / 8 : FP_TURN_LOOKS_NS);
    atomic_store(&turn->state, undone ? FP_TURN_UNDONE : FP_TURN_WATCHED);
    if (undone)
    {
        fp_turn_signal(turn);
    }
}

/* The next turn is due in so long, if not earlier, whatever is said or forgotten by who is at one now. */
static void fp_turn_hurry(fp_turn_t *turn, int64_t rest_ns)
{
    const int64_t until_ns = fp_now_ns() + rest_ns;
    int_least64_t before = atomic_load(&turn->hurried_ns);

    while (until_ns < before && !atomic_compare_exchange_weak(&turn->hurried_ns, &before, until_ns))
    {
    }
}

/* How long until the next turn. Whoever hurried it until now is served by it. */
static int64_t fp_turn_left(fp_turn_t *turn)
{
    const int64_t now = fp_now_ns();
    const int64_t until_ns = atomic_load(&turn->until_ns);
    const int64_t hurried_ns = atomic_load(&turn->hurried_ns);
    const int64_t left = (hurried_ns < until_ns ? hurried_ns : until_ns) - now;

    if (left <= 0)
    {
        atomic_store(&turn->hurried_ns, INT64_MAX);
    }
    return left;
}

/* A look by who came by. Whether there is a turn to take, which then is his. */
static bool fp_turn_take(fp_turn_t *turn)
{
    int watched = FP_TURN_WATCHED;
    const int64_t now = fp_now_ns();

    if (now < turn->look_ns || !atomic_compare_exchange_strong(&turn->state, &watched, FP_TURN_LOOKING))
    {
        return false;
    }
    turn->look_ns = now + FP_TURN_LOOKS_NS;
    bool due = fp_turn_left(turn) <= 0;
    for (size_t i = 0; i < turn->count && !due; i++)
    {
        due = fp_ear_hears(turn->ears[i]);
    }
    atomic_store(&turn->state, due ? FP_TURN_TAKEN : FP_TURN_WATCHED);
    return due;
}

/* Somebody comes by who has the interpreter. Whether it is worth a call of `fp_turn_take`. */
static inline bool fp_turn_attend(fp_turn_t *turn)
{
    const unsigned calls = atomic_load_explicit(&turn->calls, memory_order_relaxed) + 1;

    atomic_store_explicit(&turn->calls, calls, memory_order_relaxed);
    return 0 == calls % FP_TURN_CALLS && FP_TURN_WATCHED == atomic_load_explicit(&turn->state, memory_order_relaxed);
}

/* Whether those who come by look. */
static bool fp_turn_is_watched(fp_turn_t *turn)
{
    const int state = atomic_load(&turn->state);
    return FP_TURN_WATCHED == state || FP_TURN_LOOKING == state;
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
    const int64_t now = fp_now_ns();
    const struct timespec span = fp_timespec(fp_nap_until(now, duration_ns) - now);
    uint64_t value;

    if (ppoll(&waited, 1, &span, NULL) > 0)
    {
        ssize_t ignored = read(turn->event_fd, &value, sizeof(value));
        (void)ignored;
    }
    fp_nap_exactly(true); /* the thread is somebody else's */
}

#define FP_EARS_LONGER 4 /* times as long as the nap before is one that ended with nothing */

enum fp_ears_found
{
    FP_EARS_OVER,   /* the time is */
    FP_EARS_HEARD,
    FP_EARS_NUDGED,
    FP_EARS_ATTENDED /* others come by so often that they can look */
};

/* Whether others came by often enough, in so long. */
static bool fp_turn_is_attended(const fp_turn_t *turn, unsigned calls, int64_t duration_ns)
{
    return turn->wanted && calls >= FP_TURN_LEAST_CALLS && calls * FP_TURN_APART_NS >= duration_ns;
}

/* Leaves looks and turns to those who come by, until they do not (OVER), or leave a turn undone, or it is nudged. */
static int fp_ears_are_attended(fp_ear_t **ears, size_t count, fp_turn_t *turn)
{
    turn->ears = ears;
    turn->count = count;
    turn->look_ns = 0;
    for (;;)
    {
        const unsigned before = atomic_load(&turn->calls);
        const int64_t began = fp_now_ns();
        int state = FP_TURN_WATCHED;
        atomic_store(&turn->state, FP_TURN_WATCHED);
        fp_turn_nap(turn, FP_TURN_WATCHED_NS);
        while (!atomic_compare_exchange_strong(&turn->state, &state, FP_TURN_NONE))
        {
            if (FP_TURN_UNDONE == state)
            {
                atomic_store(&turn->state, FP_TURN_NONE);
                return FP_EARS_HEARD;
            }
            fp_turn_nap(turn, FP_TURN_LOOKS_NS);
            state = FP_TURN_WATCHED;
        }
        if (atomic_exchange(&turn->nudged, false))
        {
            return FP_EARS_NUDGED;
        }
        if (!fp_turn_is_attended(turn, atomic_load(&turn->calls) - before, fp_now_ns() - began))
        {
            return FP_EARS_OVER;
        }
    }
}

/* Naps, longer each time, until one of those things is found. It naps at least once, if there is time and nobody has
 * nudged it. */
static int fp_ears_listen(fp_ear_t **ears, size_t count, fp_turn_t *turn, int64_t *nap_ns, int64_t most_ns)
{
    for (;;)
    {
        const unsigned before = atomic_load(&turn->calls);
        const int64_t began = fp_now_ns();
        const int64_t left = fp_turn_left(turn);
        if (left > 0 && !atomic_load(&turn->nudged)) /* its signal may be gone already */
        {
            fp_turn_nap(turn, *nap_ns < left ? *nap_ns : left);
        }
        if (atomic_exchange(&turn->nudged, false))
        {
            return FP_EARS_NUDGED;
        }
        if (fp_turn_is_attended(turn, atomic_load(&turn->calls) - before, fp_now_ns() - began))
        {
            return FP_EARS_ATTENDED;
        }
        if (left <= 0)
        {
            return FP_EARS_OVER;
        }
        *nap_ns = FP_EARS_LONGER * *nap_ns < most_ns ? FP_EARS_LONGER * *nap_ns : most_ns;
        for (size_t i = 0; i < count; i++)
        {
            if (fp_ear_hears(ears[i]))
            {
                return FP_EARS_HEARD;
            }
        }
    }
}

/* The same, with turns that others take in between, each of which says how long to listen then. Whether there is a reason
 * for a turn of the caller's but the time. */
static bool fp_ears_wait(
    fp_ear_t **ears, size_t count, fp_turn_t *turn, int64_t timeout_ns, int64_t *nap_ns, int64_t least_ns,
    int64_t most_ns)
{
    int found;

    atomic_store(&turn->until_ns, fp_wait_until(fp_now_ns(), timeout_ns, most_ns));
    while (FP_EARS_ATTENDED == (found = fp_ears_listen(ears, count, turn, nap_ns, most_ns)))
    {
        found = fp_ears_are_attended(ears, count, turn);
        if (FP_EARS_OVER != found)
        {
            return true;
        }
        *nap_ns = least_ns;
    }
    return FP_EARS_OVER != found;
}

#endif
