/* The heart: a thread that sends messages at their periods, whatever the program does.
 *
 * It never needs the interpreter's lock, so a program that computes for a minute in C keeps its leases. One heart
 * serves all beats of a client. Everything that a beat points into is used with the heart's mutex held, and
 * `fp_heart_bind` takes it away under that same mutex: when it returns, the thread has left the publication and does
 * not come back. The mutex is never held over anything that waits. Include after aeron_drain.h.
 */
#ifndef FRAMEPOOL_AERON_HEARTBEAT_H
#define FRAMEPOOL_AERON_HEARTBEAT_H

#define FP_RETRY_PART 16 /* an offer that was not taken is repeated after this part of the period, ... */
#define FP_RETRY_LONGEST_NS 20000000LL /* ... and after 20 ms at the latest */

typedef struct fp_beat_stct
{
    struct fp_beat_stct *next;
    const void *owner;                /* the publication as the client knows it */
    aeron_publication_t *publication; /* NULL: it has none just now */
    fp_report_t *report;
    int64_t period_ns;
    int64_t next_ns;   /* when the next period begins */
    int64_t try_ns;    /* when to offer this period's message; INT64_MAX: it is sent */
    bool begun;        /* there was a period before */
    int64_t stamp_offset; /* -1: none */
    int64_t give_up_ns;   /* after so long without a message sent it sends nothing more; 0: never */
    int64_t begun_ns;
    atomic_bool gave_up;
    size_t length;
    uint8_t *message;
    atomic_int_least64_t last_sent_ns;
    atomic_uint_least64_t sent;
    atomic_uint_least64_t failed; /* periods that ended without a message sent */
}
fp_beat_t;

typedef struct
{
    pthread_t thread;
    bool running; /* a thread is to be joined; guarded by the interpreter's lock */
    pthread_mutex_t mutex; /* guards everything below, and the beats */
    pthread_cond_t changed;
    bool stop;
    fp_beat_t *beats;
}
fp_heart_t;

static bool fp_beat_offer(fp_beat_t *beat, int64_t now)
{
    if (NULL == beat->publication || 0 != fp_report_lost(beat->report))
    {
        return false;
    }
    if (beat->stamp_offset >= 0)
    {
        const uint64_t stamp = (uint64_t)now;
        for (int i = 0; i < 8; i++)
        {
            beat->message[beat->stamp_offset + i] = (uint8_t)(stamp >> (8 * i));
        }
    }
    if (fp_api.aeron_publication_offer(beat->publication, beat->message, beat->length, NULL, NULL) < 0)
    {
        return false;
    }
    atomic_store_explicit(&beat->last_sent_ns, now, memory_order_release);
    atomic_fetch_add_explicit(&beat->sent, 1, memory_order_release);
    return true;
}

/* Whether whoever the beat speaks for must count as given up by now: a process that was stopped and wakes up may not
 * go on as if nothing had been. Once true it stays so. */
static bool fp_beat_is_over(fp_beat_t *beat, int64_t now)
{
    const int64_t last = atomic_load_explicit(&beat->last_sent_ns, memory_order_relaxed);

    if (beat->give_up_ns > 0 && now - (0 != last ? last : beat->begun_ns) >= beat->give_up_ns)
    {
        atomic_store_explicit(&beat->gave_up, true, memory_order_release);
    }
    return atomic_load_explicit(&beat->gave_up, memory_order_relaxed);
}

/* Does what is due of one beat; returns when it next has something to do. */
static int64_t fp_beat_turn(fp_beat_t *beat, int64_t now)
{
    if (fp_beat_is_over(beat, now))
    {
        return INT64_MAX;
    }
    if (now >= beat->next_ns)
    {
        if (beat->begun && INT64_MAX != beat->try_ns)
        {
            atomic_fetch_add_explicit(&beat->failed, 1, memory_order_release);
        }
        beat->begun = true;
        /* The periods keep their pace; after a process was stopped there is one message, not one for each missed. */
        beat->next_ns = now - beat->next_ns < beat->period_ns ? beat->next_ns + beat->period_ns
                                                              : now + beat->period_ns;
        beat->try_ns = now;
    }
    if (now >= beat->try_ns)
    {
        const int64_t part = beat->period_ns / FP_RETRY_PART + 1;
        beat->try_ns = fp_beat_offer(beat, now) ? INT64_MAX
            : now + (part < FP_RETRY_LONGEST_NS ? part : FP_RETRY_LONGEST_NS);
    }
    return beat->next_ns < beat->try_ns ? beat->next_ns : beat->try_ns;
}

static void *fp_heart_main(void *arg)
{
    fp_heart_t *heart = (fp_heart_t *)arg;

    pthread_mutex_lock(&heart->mutex);
    while (!heart->stop)
    {
        const int64_t now = fp_now_ns();
        int64_t due = now + 3600000000000LL;
        for (fp_beat_t *beat = heart->beats; NULL != beat; beat = beat->next)
        {
            const int64_t next = fp_beat_turn(beat, now);
            due = next < due ? next : due;
        }
        const struct timespec until = fp_timespec(due);
        pthread_cond_timedwait(&heart->changed, &heart->mutex, &until);
    }
    pthread_mutex_unlock(&heart->mutex);
    return NULL;
}

static fp_heart_t *fp_heart_new(void)
{
    fp_heart_t *heart = calloc(1, sizeof(*heart));
    pthread_condattr_t attributes;

    if (NULL != heart)
    {
        pthread_mutex_init(&heart->mutex, NULL);
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&heart->changed, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    return heart;
}

/* Starts the thread unless it runs; an errno on failure. */
static int fp_heart_start(fp_heart_t *heart)
{
    sigset_t before;
    int error;

    if (heart->running)
    {
        return 0;
    }
    heart->stop = false;
    fp_block_signals(&before);
    error = pthread_create(&heart->thread, NULL, fp_heart_main, heart);
    fp_restore_signals(&before);
    heart->running = 0 == error;
    return error;
}

/* Ends and joins the thread, at once: it waits for nothing but its own clock. */
static void fp_heart_stop(fp_heart_t *heart)
{
    if (heart->running)
    {
        pthread_mutex_lock(&heart->mutex);
        heart->stop = true;
        pthread_cond_signal(&heart->changed);
        pthread_mutex_unlock(&heart->mutex);
        pthread_join(heart->thread, NULL);
        heart->running = false;
    }
}

static void fp_heart_free(fp_heart_t *heart)
{
    fp_heart_stop(heart);
    pthread_cond_destroy(&heart->changed);
    pthread_mutex_destroy(&heart->mutex);
    free(heart);
}

/* Gives the beats of an owner its publication, or with NULL takes it away: on return nobody uses the old one. */
static void fp_heart_bind(
    fp_heart_t *heart, const void *owner, aeron_publication_t *publication, fp_report_t *report)
{
    pthread_mutex_lock(&heart->mutex);
    for (fp_beat_t *beat = heart->beats; NULL != beat; beat = beat->next)
    {
        if (beat->owner == owner)
        {
            beat->publication = publication;
            beat->report = report;
        }
    }
    pthread_mutex_unlock(&heart->mutex);
}

/* A beat that begins when it is added; NULL without memory. */
static fp_beat_t *fp_beat_new(
    const uint8_t *message, size_t length, int64_t period_ns, int64_t stamp_offset, int64_t give_up_ns)
{
    fp_beat_t *beat = calloc(1, sizeof(*beat));

    if (NULL == beat || NULL == (beat->message = malloc(length + 1)))
    {
        free(beat);
        return NULL;
    }
    memcpy(beat->message, message, length);
    beat->length = length;
    beat->period_ns = period_ns;
    beat->stamp_offset = stamp_offset;
    beat->give_up_ns = give_up_ns;
    return beat;
}

static void fp_beat_free(fp_beat_t *beat)
{
    free(beat->message);
    free(beat);
}

static void fp_heart_add(
    fp_heart_t *heart, fp_beat_t *beat, const void *owner, aeron_publication_t *publication, fp_report_t *report)
{
    pthread_mutex_lock(&heart->mutex);
    beat->owner = owner;
    beat->publication = publication;
    beat->report = report;
    beat->begun_ns = fp_now_ns();
    beat->next_ns = beat->begun_ns;
    beat->next = heart->beats;
    heart->beats = beat;
    pthread_cond_signal(&heart->changed);
    pthread_mutex_unlock(&heart->mutex);
}

/* On return the thread has left the beat for good. */
static void fp_heart_remove(fp_heart_t *heart, fp_beat_t *beat)
{
    pthread_mutex_lock(&heart->mutex);
    fp_beat_t **link = &heart->beats;
    while (NULL != *link && *link != beat)
    {
        link = &(*link)->next;
    }
    if (NULL != *link)
    {
        *link = beat->next;
    }
    pthread_mutex_unlock(&heart->mutex);
}

/* The message from now on; 0, or -1 without memory. */
static int fp_beat_update(fp_heart_t *heart, fp_beat_t *beat, const uint8_t *message, size_t length)
{
    uint8_t *fresh = malloc(length + 1);

    if (NULL == fresh)
    {
        return -1;
    }
    memcpy(fresh, message, length);
    pthread_mutex_lock(&heart->mutex);
    uint8_t *old = beat->message;
    beat->message = fresh;
    beat->length = length;
    pthread_mutex_unlock(&heart->mutex);
    free(old);
    return 0;
}

static int64_t fp_beat_last_sent_ns(fp_beat_t *beat)
{
    return atomic_load_explicit(&beat->last_sent_ns, memory_order_acquire);
}

static bool fp_beat_gave_up(fp_beat_t *beat)
{
    return atomic_load_explicit(&beat->gave_up, memory_order_acquire);
}

static uint64_t fp_beat_sent(fp_beat_t *beat)
{
    return atomic_load_explicit(&beat->sent, memory_order_acquire);
}

static uint64_t fp_beat_failed(fp_beat_t *beat)
{
    return atomic_load_explicit(&beat->failed, memory_order_acquire);
}

#endif
