/* Waiting, without the interpreter's lock, until one of several subscriptions has something to say.
 *
 * Aeron wakes nobody. So the one who waits naps and looks, and a look leaves everything where it is: the fragment handler
 * refuses what it is shown. Include after aeron_drain.h.
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

/* Sleeps until somebody writes to the eventfd, which it then empties; true if that was so. */
static bool fp_ears_nap(int event_fd, int64_t duration_ns)
{
    struct pollfd waited = { .fd = event_fd, .events = POLLIN };
    const struct timespec span = { .tv_sec = duration_ns / 1000000000LL, .tv_nsec = duration_ns % 1000000000LL };
    uint64_t value;

    return ppoll(&waited, 1, &span, NULL) > 0 && read(event_fd, &value, sizeof(value)) > 0;
}

/* Naps, a quarter longer each time up to `most_ns`, until there is something to hear (1), it is nudged (1) or the time
 * is over (0). It naps at least once. */
static int fp_ears_wait(
    fp_ear_t **ears, size_t count, int event_fd, int64_t timeout_ns, int64_t *nap_ns, int64_t most_ns)
{
    const int64_t until = fp_now_ns() + timeout_ns;

    for (;;)
    {
        const int64_t left = until - fp_now_ns();
        if (left <= 0)
        {
            return 0;
        }
        if (fp_ears_nap(event_fd, *nap_ns < left ? *nap_ns : left))
        {
            return 1;
        }
        *nap_ns = *nap_ns + *nap_ns / 4 < most_ns ? *nap_ns + *nap_ns / 4 : most_ns;
        for (size_t i = 0; i < count; i++)
        {
            if (fp_ear_hears(ears[i]))
            {
                return 1;
            }
        }
    }
}

#endif
