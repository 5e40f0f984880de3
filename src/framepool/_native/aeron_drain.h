/* The drain: a subscription emptied into a bounded queue which keeps the newest.
 *
 * Whoever wants a message empties it himself, which is the shortest way. A thread stands by and does it while nobody
 * else does; it never needs the interpreter's lock, so a program that computes or sleeps holds up no publisher.
 * Include after aeron_receive.h.
 */
#ifndef FRAMEPOOL_AERON_DRAIN_H
#define FRAMEPOOL_AERON_DRAIN_H

#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FP_DRAIN_LIMIT 256
#define FP_DRAIN_YIELDS 64
#define FP_DRAIN_SPINS 2000
#define FP_DRAIN_NAP_LEAST_NS 200000  /* between turns of the thread while nobody waits for what it takes */
#define FP_DRAIN_NAP_MOST_NS 20000000
#define FP_DRAIN_NAP_PART 8 /* of a term may come meanwhile: a publisher waits when half of one is unread, and a reader
                             * who took a turn during a nap makes it two */
#define FP_DRAIN_FLOW 150 /* bytes a microsecond: descriptors as fast as one publisher writes them */

/* Where a reader who found the queue empty has messages put, past the queue. */
typedef struct
{
    uint8_t *records; /* NULL: into the queue */
    size_t most;      /* bytes of a message in a record, behind 8 bytes of its length */
    size_t count;
    bool emptied; /* the last turn left nothing in the log, as far as it saw; the reader's own */
    atomic_uint_fast64_t total; /* of all times */
}
fp_straight_t;

typedef struct
{
    pthread_t thread;
    bool running; /* a thread is to be joined; guarded by the interpreter's lock */
    int policy;   /* of the thread that made it: it may be started again by one that stands back */
    atomic_bool stop;

    aeron_subscription_t *subscription;
    fp_report_t *report;
    fp_receiver_t receiver;
    int64_t idle_ns;
    atomic_int_fast64_t nap_ns;

    pthread_mutex_t turn; /* held by whoever polls the subscription; guards its pointer, the receiver and `straight` */
    fp_straight_t straight;
    atomic_uint_fast64_t reader_turns; /* how often a reader polled by itself */
    atomic_bool watched; /* somebody waits for the eventfd, which is the thread's to write */
    bool held; /* whoever polls holds the mutex below */

    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t changed;
    pthread_cond_t roused; /* the thread is not to nap: see fp_drain_is_needed */
    uint8_t *slots;
    size_t slot_size;
    size_t max_message;
    uint64_t capacity;
    atomic_uint_fast64_t head; /* messages queued since the beginning; looked at without the mutex too */
    atomic_uint_fast64_t tail; /* messages taken or overwritten since the beginning; the same */
    uint64_t overwritten;
    uint64_t oversized;
    int event_fd;
    atomic_bool ended; /* the thread left by itself: the client is lost */
    atomic_bool images_wanted; /* also looked at without the mutex */
    fp_images_t images;
    int image_count;
}
fp_drain_t;

static int64_t fp_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
}

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
    struct timespec span = { .tv_sec = duration / 1000000000LL, .tv_nsec = duration % 1000000000LL };
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
    pthread_cond_broadcast(&drain->changed);
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

/* How long the thread may nap. */
static int64_t fp_drain_nap_of(aeron_subscription_t *subscription)
{
    int64_t term = FP_DRAIN_FLOW * (FP_DRAIN_NAP_MOST_NS / 1000) * FP_DRAIN_NAP_PART;
    fp_api.aeron_subscription_for_each_image(subscription, fp_drain_shortest_term, &term);
    const int64_t nap = term / FP_DRAIN_NAP_PART * 1000 / FP_DRAIN_FLOW;
    return nap < FP_DRAIN_NAP_LEAST_NS ? FP_DRAIN_NAP_LEAST_NS : nap;
}

/* One duty cycle, with the turn taken; returns the fragments read. */
static int fp_drain_turn_held(fp_drain_t *drain, size_t limit)
{
    const uint64_t before = drain->head;
    const int read = fp_receiver_poll(&drain->receiver, drain->subscription, limit);
    const int images = fp_api.aeron_subscription_image_count(drain->subscription);

    if (drain->held || images != drain->image_count || drain->images_wanted)
    {
        fp_drain_hold(drain);
        if (images != drain->image_count)
        {
            atomic_store_explicit(&drain->nap_ns, fp_drain_nap_of(drain->subscription), memory_order_relaxed);
        }
        drain->image_count = images;
        const bool answered = drain->images_wanted;
        if (answered)
        {
            fp_images_read(&drain->images, drain->subscription);
            drain->images_wanted = false;
        }
        if (answered || drain->head != before)
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

/* A reader's turn: it finds in the queue what there is to be had, and the thread keeps aside. */
static void fp_drain_turn_by_reader(fp_drain_t *drain)
{
    atomic_fetch_add_explicit(&drain->reader_turns, 1, memory_order_relaxed);
    fp_drain_turn(drain);
}

/* A reader's turn past the queue, which is empty: up to `limit` messages straight from the log into its records. */
static size_t fp_drain_take_straight(fp_drain_t *drain, uint8_t *records, size_t most, size_t limit)
{
    fp_straight_t *straight = &drain->straight;
    size_t taken = 0;

    fp_drain_forward(&drain->reader_turns, 1);
    if (0 == pthread_mutex_trylock(&drain->turn))
    {
        if (fp_drain_can_turn(drain) && 0 == fp_drain_queued(drain)) /* it stays empty while we have the turn */
        {
            straight->records = records;
            straight->most = most;
            straight->count = 0;
            limit = limit < FP_DRAIN_LIMIT ? limit : FP_DRAIN_LIMIT;
            straight->emptied = fp_drain_turn_held(drain, limit) < (int)limit;
            straight->records = NULL;
            taken = straight->count;
            fp_drain_forward(&straight->total, (int64_t)taken);
        }
        pthread_mutex_unlock(&drain->turn);
    }
    return taken;
}

static void fp_drain_idle(const fp_drain_t *drain, int64_t *pause)
{
    fp_sleep_ns(*pause < drain->idle_ns ? *pause : drain->idle_ns);
    *pause = *pause < drain->idle_ns ? *pause * 2 : *pause;
}

/* Whether somebody waits for what the thread alone does. */
static bool fp_drain_is_needed(fp_drain_t *drain)
{
    return drain->images_wanted || atomic_load_explicit(&drain->watched, memory_order_relaxed);
}

/* Until the time is over, or the thread is needed or to end. */
static void fp_drain_nap(fp_drain_t *drain)
{
    const int64_t until = fp_now_ns() + drain->nap_ns;
    const struct timespec deadline = { .tv_sec = until / 1000000000LL, .tv_nsec = until % 1000000000LL };
    int error = 0;

    pthread_mutex_lock(&drain->mutex);
    while (0 == error && !fp_drain_is_needed(drain) && !atomic_load(&drain->stop))
    {
        error = pthread_cond_timedwait(&drain->roused, &drain->mutex, &deadline);
    }
    pthread_mutex_unlock(&drain->mutex);
}

static void *fp_drain_main(void *arg)
{
    fp_drain_t *drain = (fp_drain_t *)arg;
    if (SCHED_OTHER == drain->policy && SCHED_BATCH == sched_getscheduler(0))
    {
        const struct sched_param none = {.sched_priority = 0};
        sched_setscheduler(0, SCHED_OTHER, &none);
    }
    uint_fast64_t seen = 0;
    int64_t pause = 1000;
    int idle = 0;

    while (!atomic_load_explicit(&drain->stop, memory_order_acquire) && 0 == fp_report_lost(drain->report))
    {
        const uint_fast64_t turned = atomic_load_explicit(&drain->reader_turns, memory_order_relaxed);
        const bool needed = fp_drain_is_needed(drain);
        const int read = needed || turned == seen ? fp_drain_turn(drain) : 0;
        seen = turned;
        if (read == FP_DRAIN_LIMIT)
        {
            continue; /* there is more */
        }
        if (!needed)
        {
            fp_drain_nap(drain); /* a reader who comes turns by himself */
        }
        else if (read > 0)
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

    pthread_mutex_lock(&drain->mutex);
    drain->ended = true;
    drain->image_count = 0;
    fp_drain_announce(drain);
    pthread_mutex_unlock(&drain->mutex);
    return NULL;
}

static fp_drain_t *fp_drain_new(size_t capacity, size_t max_message, int64_t idle_ns)
{
    fp_drain_t *drain = calloc(1, sizeof(*drain));
    pthread_condattr_t attributes;

    if (NULL == drain)
    {
        return NULL;
    }
    drain->capacity = capacity;
    drain->max_message = max_message;
    drain->slot_size = (sizeof(uint64_t) + max_message + 7) & ~(size_t)7;
    drain->idle_ns = idle_ns;
    drain->nap_ns = FP_DRAIN_NAP_LEAST_NS;
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
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&drain->changed, &attributes);
    pthread_cond_init(&drain->roused, &attributes);
    pthread_condattr_destroy(&attributes);
    return drain;
}

static int fp_drain_start(fp_drain_t *drain, aeron_subscription_t *subscription, fp_report_t *report)
{
    pthread_mutex_lock(&drain->turn);
    drain->subscription = subscription;
    drain->report = report;
    pthread_mutex_unlock(&drain->turn);
    atomic_store(&drain->stop, false);
    fp_drain_lock(drain);
    drain->ended = false;
    fp_drain_unlock(drain);
    sigset_t before;
    fp_block_signals(&before);
    const int error = pthread_create(&drain->thread, NULL, fp_drain_main, drain);
    fp_restore_signals(&before);
    drain->running = 0 == error;
    return error;
}

/* Ends and joins the thread. What is queued stays. */
static void fp_drain_stop(fp_drain_t *drain)
{
    if (drain->running)
    {
        pthread_mutex_lock(&drain->mutex);
        atomic_store(&drain->stop, true);
        pthread_cond_signal(&drain->roused);
        pthread_mutex_unlock(&drain->mutex);
        pthread_join(drain->thread, NULL);
        drain->running = false;
        pthread_mutex_lock(&drain->turn); /* a reader without the interpreter's lock may be at it */
        drain->subscription = NULL;
        fp_receiver_clear(&drain->receiver);
        pthread_mutex_unlock(&drain->turn);
    }
}

static void fp_drain_free(fp_drain_t *drain)
{
    fp_drain_stop(drain);
    fp_receiver_clear(&drain->receiver);
    if (drain->event_fd >= 0)
    {
        close(drain->event_fd);
    }
    pthread_cond_destroy(&drain->roused);
    pthread_cond_destroy(&drain->changed);
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
        fp_drain_turn_by_reader(drain);
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

/* Waits for the images that the thread was asked for, or for the end. */
static void fp_drain_wait_images(fp_drain_t *drain, int64_t timeout_ns)
{
    const int64_t until = fp_now_ns() + timeout_ns;
    const struct timespec deadline = { .tv_sec = until / 1000000000LL, .tv_nsec = until % 1000000000LL };
    int error = 0;

    pthread_mutex_lock(&drain->mutex);
    pthread_cond_signal(&drain->roused);
    while (!drain->ended && drain->images_wanted && 0 == error)
    {
        error = pthread_cond_timedwait(&drain->changed, &drain->mutex, &deadline);
    }
    pthread_mutex_unlock(&drain->mutex);
}

static int fp_drain_event_fd(fp_drain_t *drain)
{
    pthread_mutex_lock(&drain->mutex);
    if (drain->event_fd < 0)
    {
        drain->event_fd = eventfd(drain->head != drain->tail, EFD_CLOEXEC | EFD_NONBLOCK);
        atomic_store(&drain->watched, true);
        pthread_cond_signal(&drain->roused);
    }
    pthread_mutex_unlock(&drain->mutex);
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
