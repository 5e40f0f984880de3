/* The drain: a subscription emptied into a bounded queue which keeps the newest.
 *
 * Whoever wants a message empties it himself, which is the shortest way. A thread of the process stands by and does it
 * for all drains that nobody else empties; one whose eventfd somebody waits for has a thread of its own. Neither needs
 * the interpreter's lock, so a program that computes or sleeps holds up no publisher. Include after aeron_receive.h.
 */
#ifndef FRAMEPOOL_AERON_DRAIN_H
#define FRAMEPOOL_AERON_DRAIN_H

#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "nap.h"

#define FP_DRAIN_LIMIT 256
#define FP_DRAIN_YIELDS 64
#define FP_DRAIN_SPINS 2000
#define FP_DRAIN_NAP_LEAST_NS 200000 /* between turns of the thread that stands by */
#define FP_DRAIN_NAP_MOST_NS 16000000  /* a publisher waits when half of a term is unread: what one writes at full speed
                                        * takes longer to fill as much, also if it starts in the middle of a nap */
#define FP_DRAIN_TERM (16 * 1024 * 1024) /* of which that is the longest; others' are in proportion */
#define FP_DRAIN_NAP_PART 4 /* of a term may come meanwhile, at the pace since the last nap began */

/* Where a reader who found the queue empty has messages put, past the queue. */
typedef struct
{
    uint8_t *records; /* NULL: into the queue */
    size_t most;      /* bytes of a message in a record, behind 8 bytes of its length */
    size_t count;
    fp_coming_t coming;
    bool emptied; /* the last turn left nothing in the log, as far as it saw; the reader's own */
    atomic_uint_fast64_t total; /* of all times */
}
fp_straight_t;

typedef struct fp_drain_stct
{
    bool running; /* it is turned by threads; this and the next two are guarded by the interpreter's lock */
    bool watched; /* somebody waits for the eventfd, which is for a thread of its own to write */
    pthread_t thread; /* that one, if it is running and watched */
    int policy; /* of the thread that made it: it may be started again by one that stands back */
    atomic_bool stop;
    struct fp_drain_stct *next; /* that the standby turns; guarded by its mutex, as are the next two */
    uint_fast64_t seen_bytes; /* that had come when the standby napped last */
    int64_t seen_ns;          /* when that was */

    aeron_subscription_t *subscription;
    fp_report_t *report;
    fp_receiver_t receiver;
    int64_t idle_ns;
    atomic_int_fast64_t term; /* bytes of the shortest one that it receives from; 0 before the first turn */
    atomic_uint_fast64_t bytes; /* of the log that were read: so many at the most, if no message is too long for a slot */

    pthread_mutex_t turn; /* held by whoever polls the subscription; guards its pointer, the receiver and `straight` */
    fp_straight_t straight;
    bool held; /* whoever polls holds the mutex below */

    pthread_mutex_t mutex; /* guards everything below */
    uint8_t *slots;
    size_t slot_size;
    size_t max_message;
    uint64_t capacity;
    atomic_uint_fast64_t head; /* messages queued since the beginning; looked at without the mutex too */
    atomic_uint_fast64_t tail; /* messages taken or overwritten since the beginning; the same */
    uint64_t overwritten;
    uint64_t oversized;
    int event_fd;
    atomic_bool ended; /* no thread turns it any more: the client is lost */
    int image_count;
}
fp_drain_t;

static inline void fp_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void fp_sleep_ns(int64_t duration)
{
    const struct timespec span = fp_timespec(duration);
    nanosleep(&span, NULL);
}

static void fp_drain_lock(fp_drain_t *drain)
{
    pthread_mutex_lock(&drain->mutex);
}

static void fp_drain_unlock(fp_drain_t *drain)
{
    pthread_mutex_unlock(&drain->mutex);
}

static void fp_drain_hold(fp_drain_t *drain)
{
    if (!drain->held)
    {
        pthread_mutex_lock(&drain->mutex);
        drain->held = true;
    }
}

/* How much is queued, in the eyes of who looks without the mutex. */
static inline uint64_t fp_drain_queued(fp_drain_t *drain)
{
    const uint64_t tail = atomic_load_explicit(&drain->tail, memory_order_acquire);
    return atomic_load_explicit(&drain->head, memory_order_acquire) - tail;
}

static inline uint8_t *fp_drain_slot(fp_drain_t *drain, uint64_t number)
{
    return drain->slots + (number % drain->capacity) * drain->slot_size;
}

static inline void fp_drain_forward(atomic_uint_fast64_t *end, int64_t by)
{
    atomic_store_explicit(end, atomic_load_explicit(end, memory_order_relaxed) + by, memory_order_release);
}

static inline void fp_drain_store(uint8_t *record, const uint8_t *buffer, size_t length, size_t most)
{
    const uint64_t stored = length;
    memcpy(record, &stored, sizeof(stored));
    memcpy(record + sizeof(stored), buffer, length < most ? length : most);
}

static void fp_drain_deliver(void *clientd, const uint8_t *buffer, size_t length)
{
    fp_drain_t *drain = (fp_drain_t *)clientd;
    fp_straight_t *straight = &drain->straight;

    if (length > drain->max_message)
    {
        fp_drain_hold(drain);
        drain->oversized++;
    }
    else if (NULL != straight->records)
    {
        fp_drain_store(
            straight->records + straight->count * (sizeof(uint64_t) + straight->most), buffer, length, straight->most);
        straight->count++;
    }
    else
    {
        fp_drain_hold(drain);
        if (fp_drain_queued(drain) == drain->capacity)
        {
            fp_drain_forward(&drain->tail, 1);
            drain->overwritten++;
        }
        fp_drain_store(fp_drain_slot(drain, drain->head), buffer, length, length);
        fp_drain_forward(&drain->head, 1);
    }
}

static void fp_drain_retract(void *clientd)
{
    fp_drain_t *drain = (fp_drain_t *)clientd;
    if (NULL != drain->straight.records)
    {
        drain->straight.count -= drain->straight.count > 0;
    }
    else if (fp_drain_queued(drain) > 0)
    {
        fp_drain_forward(&drain->head, -1);
    }
}

static void fp_drain_announce(fp_drain_t *drain)
{
    if (drain->event_fd >= 0)
    {
        const uint64_t one = 1;
        ssize_t ignored = write(drain->event_fd, &one, sizeof(one)); /* full means: already readable */
        (void)ignored;
    }
}

static void fp_drain_shortest_term(aeron_image_t *image, void *clientd)
{
    int64_t *shortest = (int64_t *)clientd;
    aeron_image_constants_t constants;
    if (0 == fp_api.aeron_image_constants(image, &constants) && (int64_t)constants.term_buffer_length < *shortest)
    {
        *shortest = (int64_t)constants.term_buffer_length;
    }
}

static int64_t fp_drain_term_of(aeron_subscription_t *subscription)
{
    int64_t term = FP_DRAIN_TERM;
    fp_api.aeron_subscription_for_each_image(subscription, fp_drain_shortest_term, &term);
    return term;
}

/* One duty cycle, with the turn taken; returns the fragments read. */
static int fp_drain_turn_held(fp_drain_t *drain, size_t limit)
{
    const uint64_t before = drain->head;
    const int read = fp_receiver_poll(&drain->receiver, drain->subscription, limit);
    const int images = fp_api.aeron_subscription_image_count(drain->subscription);

    fp_drain_forward(&drain->bytes, read * (FP_FRAME_HEADER + (int64_t)drain->max_message));
    if (0 == read)
    {
        fp_ahead_look(&drain->receiver.ahead);
    }
    if (drain->held || images != drain->image_count || 0 == drain->term)
    {
        fp_drain_hold(drain);
        if (images != drain->image_count || 0 == drain->term)
        {
            drain->receiver.ahead.term = fp_drain_term_of(drain->subscription);
            atomic_store_explicit(&drain->term, drain->receiver.ahead.term, memory_order_relaxed);
        }
        drain->image_count = images;
        if (drain->head != before)
        {
            fp_drain_announce(drain);
        }
        drain->held = false;
        pthread_mutex_unlock(&drain->mutex);
    }
    return read;
}

static inline bool fp_drain_can_turn(const fp_drain_t *drain)
{
    return NULL != drain->subscription && 0 == fp_report_lost(drain->report);
}

/* One duty cycle unless somebody else is at it; returns the fragments read. */
static int fp_drain_turn(fp_drain_t *drain)
{
    int read = 0;

    if (0 == pthread_mutex_trylock(&drain->turn))
    {
        if (fp_drain_can_turn(drain))
        {
            read = fp_drain_turn_held(drain, FP_DRAIN_LIMIT);
        }
        pthread_mutex_unlock(&drain->turn);
    }
    return read;
}

/* A reader's turn past the queue, which is empty: up to `limit` messages straight from the log into its records. If the
 * thread that stands by is at it, it is waited for: it may have lost its processor in the middle, and gets this one. */
static size_t fp_drain_take_straight(fp_drain_t *drain, uint8_t *records, size_t most, size_t limit)
{
    fp_straight_t *straight = &drain->straight;
    size_t taken = 0;

    pthread_mutex_lock(&drain->turn);
    if (fp_drain_can_turn(drain) && 0 == fp_drain_queued(drain)) /* it stays empty while we have the turn */
    {
        straight->records = records;
        straight->most = most;
        straight->count = 0;
        drain->receiver.coming = NULL != straight->coming.slot ? &straight->coming : NULL;
        limit = limit < FP_DRAIN_LIMIT ? limit : FP_DRAIN_LIMIT;
        straight->emptied = fp_drain_turn_held(drain, limit) < (int)limit;
        straight->records = NULL;
        drain->receiver.coming = NULL;
        taken = straight->count;
        fp_drain_forward(&straight->total, (int64_t)taken);
    }
    pthread_mutex_unlock(&drain->turn);
    return taken;
}

static void fp_drain_idle(const fp_drain_t *drain, int64_t *pause)
{
    fp_sleep_ns(*pause < drain->idle_ns ? *pause : drain->idle_ns);
    *pause = *pause < drain->idle_ns ? *pause * 2 : *pause;
}

static void fp_drain_end(fp_drain_t *drain)
{
    pthread_mutex_lock(&drain->mutex);
    drain->ended = true;
    drain->image_count = 0;
    fp_drain_announce(drain);
    pthread_mutex_unlock(&drain->mutex);
}

/* A thread that was started by one that stands back has that one's policy. */
static void fp_drain_stand_up(int policy)
{
    if (SCHED_OTHER == policy && SCHED_BATCH == sched_getscheduler(0))
    {
        const struct sched_param none = {.sched_priority = 0};
        sched_setscheduler(0, SCHED_OTHER, &none);
    }
}

/* The thread of a drain whose eventfd is waited for. */
static void *fp_drain_main(void *arg)
{
    fp_drain_t *drain = (fp_drain_t *)arg;
    int64_t pause = 1000;
    int idle = 0;

    fp_drain_stand_up(drain->policy);
    while (!atomic_load_explicit(&drain->stop, memory_order_acquire) && 0 == fp_report_lost(drain->report))
    {
        const int read = fp_drain_turn(drain);
        if (read >= FP_DRAIN_LIMIT)
        {
            continue; /* there is more */
        }
        if (read > 0)
        {
            idle = 0;
            pause = 1000;
        }
        else if (++idle <= FP_DRAIN_YIELDS)
        {
            sched_yield();
        }
        else
        {
            fp_drain_idle(drain, &pause);
        }
    }
    fp_drain_end(drain);
    return NULL;
}

/* The thread that turns all drains of the process which nobody waits for. It is there while there are any. */
static struct
{
    pthread_t thread; /* to be joined if there are drains; guarded by the interpreter's lock */
    pthread_mutex_t mutex; /* held over a turn; guards what is below */
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    fp_drain_t *drains;
    int policy;
}
fp_standby;

/* Also in a forked child, which has inherited drains that are none of its own, and no thread. */
static void fp_standby_begin(void)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&fp_standby.mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&fp_standby.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    fp_standby.drains = NULL;
}

static int fp_standby_watch_forks(void)
{
    fp_standby_begin();
    return pthread_atfork(NULL, NULL, fp_standby_begin);
}

/* How long a drain may be left alone, after what came since it was left alone last. */
static int64_t fp_standby_nap(fp_drain_t *drain)
{
    const int64_t now = fp_now_ns();
    const uint64_t bytes = atomic_load_explicit(&drain->bytes, memory_order_relaxed);
    const int64_t term = atomic_load_explicit(&drain->term, memory_order_relaxed);
    const double part = (double)term / FP_DRAIN_NAP_PART;
    const double came = (double)(bytes - drain->seen_bytes);
    double nap = (double)FP_DRAIN_NAP_MOST_NS * (double)term / FP_DRAIN_TERM;

    if (came * nap > part * (double)(now - drain->seen_ns))
    {
        nap = part * (double)(now - drain->seen_ns) / came;
    }
    drain->seen_bytes = bytes;
    drain->seen_ns = now;
    return nap < FP_DRAIN_NAP_LEAST_NS ? FP_DRAIN_NAP_LEAST_NS : (int64_t)nap;
}

/* A turn of one drain unless a reader is at it; whether there is more. */
static bool fp_standby_turn(fp_drain_t *drain)
{
    const int read = fp_drain_turn(drain);

    if (0 != fp_report_lost(drain->report) && !drain->ended)
    {
        fp_drain_end(drain);
    }
    return read >= FP_DRAIN_LIMIT;
}

static void *fp_standby_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&fp_standby.mutex);
    while (NULL != fp_standby.drains)
    {
        int64_t nap_ns = FP_DRAIN_NAP_MOST_NS;
        bool more = false;

        fp_drain_stand_up(fp_standby.policy);
        for (fp_drain_t *drain = fp_standby.drains; NULL != drain; drain = drain->next)
        {
            more = fp_standby_turn(drain) || more;
        }
        if (more) /* but whoever comes or goes is let in */
        {
            pthread_mutex_unlock(&fp_standby.mutex);
            sched_yield();
            pthread_mutex_lock(&fp_standby.mutex);
            continue;
        }
        for (fp_drain_t *drain = fp_standby.drains; NULL != drain; drain = drain->next)
        {
            const int64_t alone_ns = fp_standby_nap(drain);
            nap_ns = alone_ns < nap_ns ? alone_ns : nap_ns;
        }
        const struct timespec deadline = fp_timespec(fp_nap_until(fp_now_ns(), nap_ns));
        pthread_cond_timedwait(&fp_standby.changed, &fp_standby.mutex, &deadline);
    }
    pthread_mutex_unlock(&fp_standby.mutex);
    return NULL;
}

static int fp_drain_thread(pthread_t *thread, void *(*main)(void *), void *arg)
{
    sigset_t before;
    fp_block_signals(&before);
    const int error = pthread_create(thread, NULL, main, arg);
    fp_restore_signals(&before);
    return error;
}

static int fp_standby_add(fp_drain_t *drain)
{
    int error = 0;

    pthread_mutex_lock(&fp_standby.mutex);
    const bool first = NULL == fp_standby.drains;
    fp_standby.policy = first || SCHED_OTHER == drain->policy ? drain->policy : fp_standby.policy;
    drain->next = fp_standby.drains;
    fp_standby.drains = drain;
    pthread_cond_signal(&fp_standby.changed);
    if (first && 0 != (error = fp_drain_thread(&fp_standby.thread, fp_standby_main, NULL)))
    {
        fp_standby.drains = NULL;
    }
    pthread_mutex_unlock(&fp_standby.mutex);
    return error;
}

/* When it returns, the thread has left the drain. */
static void fp_standby_remove(fp_drain_t *drain)
{
    fp_drain_t **link = &fp_standby.drains;

    pthread_mutex_lock(&fp_standby.mutex);
    while (*link != drain)
    {
        link = &(*link)->next;
    }
    *link = drain->next;
    const bool last = NULL == fp_standby.drains;
    if (last)
    {
        pthread_cond_signal(&fp_standby.changed);
    }
    pthread_mutex_unlock(&fp_standby.mutex);
    if (last)
    {
        pthread_join(fp_standby.thread, NULL);
    }
}

static fp_drain_t *fp_drain_new(size_t capacity, size_t max_message, int64_t idle_ns)
{
    fp_drain_t *drain = calloc(1, sizeof(*drain));

    if (NULL == drain)
    {
        return NULL;
    }
    drain->capacity = capacity;
    drain->max_message = max_message;
    drain->slot_size = (sizeof(uint64_t) + max_message + 7) & ~(size_t)7;
    drain->idle_ns = idle_ns;
    drain->event_fd = -1;
    drain->ended = true;
    drain->receiver.deliver = fp_drain_deliver;
    drain->receiver.retract = fp_drain_retract;
    drain->receiver.clientd = drain;
    if (NULL == (drain->slots = calloc(capacity, drain->slot_size)))
    {
        free(drain);
        return NULL;
    }
    drain->policy = sched_getscheduler(0);
    pthread_mutex_init(&drain->turn, NULL);
    pthread_mutex_init(&drain->mutex, NULL);
    return drain;
}

static int fp_drain_watch(fp_drain_t *drain)
{
    return fp_drain_thread(&drain->thread, fp_drain_main, drain);
}

static int fp_drain_start(fp_drain_t *drain, aeron_subscription_t *subscription, fp_report_t *report)
{
    pthread_mutex_lock(&drain->turn);
    drain->subscription = subscription;
    drain->report = report;
    drain->receiver.ahead = (fp_ahead_read_t){0};
    atomic_store_explicit(&drain->term, 0, memory_order_relaxed); /* is asked at the first turn */
    pthread_mutex_unlock(&drain->turn);
    atomic_store(&drain->stop, false);
    fp_drain_lock(drain);
    drain->ended = false;
    fp_drain_unlock(drain);
    const int error = drain->watched ? fp_drain_watch(drain) : fp_standby_add(drain);
    drain->running = 0 == error;
    return error;
}

/* No thread turns it any more. What is queued stays. */
static void fp_drain_stop(fp_drain_t *drain)
{
    if (drain->running)
    {
        if (drain->watched)
        {
            atomic_store(&drain->stop, true);
            pthread_join(drain->thread, NULL);
        }
        else
        {
            fp_standby_remove(drain);
            fp_drain_end(drain);
        }
        drain->running = false;
    }
    pthread_mutex_lock(&drain->turn); /* a reader without the interpreter's lock may be at it */
    drain->subscription = NULL;
    fp_receiver_clear(&drain->receiver);
    pthread_mutex_unlock(&drain->turn);
}

static void fp_drain_free(fp_drain_t *drain)
{
    fp_drain_stop(drain);
    fp_receiver_clear(&drain->receiver);
    if (drain->event_fd >= 0)
    {
        close(drain->event_fd);
    }
    pthread_mutex_destroy(&drain->mutex);
    pthread_mutex_destroy(&drain->turn);
    free(drain->slots);
    free(drain);
}

static bool fp_drain_ready(fp_drain_t *drain)
{
    return fp_drain_queued(drain) > 0 || atomic_load_explicit(&drain->ended, memory_order_acquire);
}

/* Waits for a message or for the end, turning the drain itself: first at full speed, then with the breaks of the
 * thread; 1 when it came. */
static int fp_drain_wait(fp_drain_t *drain, int64_t timeout_ns)
{
    const int64_t until = fp_now_ns() + timeout_ns;
    int64_t pause = 1000;

    for (int idle = 0; !fp_drain_ready(drain); idle++)
    {
        fp_drain_turn(drain);
        if (idle < FP_DRAIN_SPINS)
        {
            fp_cpu_relax();
            if (0 != idle % 64)
            {
                continue;
            }
        }
        else if (fp_drain_ready(drain))
        {
            return 1;
        }
        else if (idle < FP_DRAIN_SPINS + FP_DRAIN_YIELDS)
        {
            sched_yield();
        }
        else
        {
            fp_drain_idle(drain, &pause);
        }
        if (fp_now_ns() >= until)
        {
            return fp_drain_ready(drain);
        }
    }
    return 1;
}

/* What it receives from. Aeron frees lists of images behind who polls, so only who has the turn may look at them. */
static void fp_drain_read_images(fp_drain_t *drain, fp_images_t *found)
{
    pthread_mutex_lock(&drain->turn);
    if (fp_drain_can_turn(drain))
    {
        fp_images_read(found, drain->subscription);
    }
    pthread_mutex_unlock(&drain->turn);
}

/* From now on a thread of its own writes it; -1 with an error number where there is none to be had. */
static int fp_drain_event_fd(fp_drain_t *drain)
{
    if (drain->event_fd < 0)
    {
        pthread_mutex_lock(&drain->mutex);
        drain->event_fd = eventfd(drain->head != drain->tail, EFD_CLOEXEC | EFD_NONBLOCK);
        pthread_mutex_unlock(&drain->mutex);
    }
    if (drain->event_fd >= 0 && !drain->watched)
    {
        if (drain->running)
        {
            const int error = fp_drain_watch(drain);
            if (0 != error)
            {
                errno = error;
                return -1;
            }
            fp_standby_remove(drain);
        }
        drain->watched = true;
    }
    return drain->event_fd;
}

/* Call with the mutex held and the queue emptied: the eventfd is no longer readable, unless the end is to be seen. */
static void fp_drain_quiet(fp_drain_t *drain)
{
    if (drain->event_fd >= 0 && !drain->ended)
    {
        uint64_t value;
        ssize_t ignored = read(drain->event_fd, &value, sizeof(value));
        (void)ignored;
    }
}

/* Up to `limit` messages, oldest first, each as a record of its length in 8 bytes and its first `most` bytes. One
 * reader at a time. */
static size_t fp_drain_take(fp_drain_t *drain, uint8_t *records, size_t most, size_t limit)
{
    size_t taken = 0;

    drain->straight.emptied = false;
    if (0 == fp_drain_queued(drain))
    {
        taken = fp_drain_take_straight(drain, records, most, limit);
        if (taken > 0 || 0 == fp_drain_queued(drain))
        {
            return taken;
        }
    }
    pthread_mutex_lock(&drain->mutex);
    for (; taken < limit && fp_drain_queued(drain) > 0; taken++)
    {
        const uint8_t *slot = fp_drain_slot(drain, drain->tail);
        uint64_t length;
        memcpy(&length, slot, sizeof(length));
        fp_drain_store(records + taken * (sizeof(length) + most), slot + sizeof(length), length, most);
        fp_drain_forward(&drain->tail, 1);
    }
    if (taken > 0 && 0 == fp_drain_queued(drain))
    {
        fp_drain_quiet(drain);
    }
    pthread_mutex_unlock(&drain->mutex);
    return taken;
}

#endif
