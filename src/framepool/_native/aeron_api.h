/* The part of Aeron's C API that framepool uses, found by name at run time.
 *
 * framepool is compiled without Aeron's headers, so the prototypes stand here once, in one list. The list makes the
 * table of function pointers and the loader; tests/unit/transport compares it with the signatures of aeronc.h,
 * aeronmd.h and aeron_error.h. What follows the table: the record of errors that a client's conductor thread keeps
 * without ever touching Python, and the counter that tells a forked child from its parent.
 */
#ifndef FRAMEPOOL_AERON_API_H
#define FRAMEPOOL_AERON_API_H

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct aeron_context_stct aeron_context_t;
typedef struct aeron_stct aeron_t;
typedef struct aeron_publication_stct aeron_publication_t;
typedef struct aeron_exclusive_publication_stct aeron_exclusive_publication_t;
typedef struct aeron_subscription_stct aeron_subscription_t;
typedef struct aeron_image_stct aeron_image_t;
typedef struct aeron_counter_stct aeron_counter_t;
typedef struct aeron_header_stct aeron_header_t;
typedef struct aeron_driver_context_stct aeron_driver_context_t;
typedef struct aeron_driver_stct aeron_driver_t;
typedef struct aeron_client_registering_resource_stct aeron_async_add_publication_t;
typedef struct aeron_client_registering_resource_stct aeron_async_add_exclusive_publication_t;
typedef struct aeron_client_registering_resource_stct aeron_async_add_subscription_t;
typedef struct aeron_client_registering_resource_stct aeron_async_add_counter_t;

typedef enum aeron_threading_mode_enum
{
    AERON_THREADING_MODE_DEDICATED,
    AERON_THREADING_MODE_SHARED_NETWORK,
    AERON_THREADING_MODE_SHARED,
    AERON_THREADING_MODE_INVOKER
}
aeron_threading_mode_t;

typedef struct aeron_buffer_claim_stct
{
    uint8_t *frame_header;
    uint8_t *data;
    size_t length;
}
aeron_buffer_claim_t;

typedef struct aeron_publication_constants_stct
{
    const char *channel;
    int64_t original_registration_id;
    int64_t registration_id;
    int64_t max_possible_position;
    size_t position_bits_to_shift;
    size_t term_buffer_length;
    size_t max_message_length;
    size_t max_payload_length;
    int32_t stream_id;
    int32_t session_id;
    int32_t initial_term_id;
    int32_t publication_limit_counter_id;
    int32_t channel_status_indicator_id;
}
aeron_publication_constants_t;

typedef struct aeron_image_constants_stct
{
    aeron_subscription_t *subscription;
    const char *source_identity;
    int64_t correlation_id;
    int64_t join_position;
    size_t position_bits_to_shift;
    size_t term_buffer_length;
    size_t mtu_length;
    int32_t session_id;
    int32_t initial_term_id;
    int32_t subscriber_position_id;
}
aeron_image_constants_t;

typedef struct aeron_counter_constants_stct
{
    int64_t correlation_id;
    int64_t registration_id;
    int32_t counter_id;
}
aeron_counter_constants_t;

typedef void (*aeron_error_handler_t)(void *clientd, int errcode, const char *message);
typedef void (*aeron_notification_t)(void *clientd);
typedef void (*aeron_on_available_image_t)(void *clientd, aeron_subscription_t *subscription, aeron_image_t *image);
typedef void (*aeron_on_unavailable_image_t)(void *clientd, aeron_subscription_t *subscription, aeron_image_t *image);
typedef void (*aeron_fragment_handler_t)(void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header);
typedef enum aeron_controlled_fragment_handler_action_en
{
    AERON_ACTION_ABORT = 1, /* as if the fragment had not been shown */
    AERON_ACTION_BREAK = 2,
    AERON_ACTION_COMMIT = 3,
    AERON_ACTION_CONTINUE = 4
}
aeron_controlled_fragment_handler_action_t;
typedef aeron_controlled_fragment_handler_action_t (*aeron_controlled_fragment_handler_t)(
    void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header);
typedef int64_t (*aeron_reserved_value_supplier_t)(void *clientd, uint8_t *buffer, size_t frame_length);

#define FP_AERON_FUNCTIONS(X) \
    X(int, aeron_context_init, (aeron_context_t **context)) \
    X(int, aeron_context_close, (aeron_context_t *context)) \
    X(int, aeron_context_set_dir, (aeron_context_t *context, const char *value)) \
    X(int, aeron_context_set_client_name, (aeron_context_t *context, const char *value)) \
    X(int, aeron_context_set_driver_timeout_ms, (aeron_context_t *context, uint64_t value)) \
    X(int, aeron_context_set_keepalive_interval_ns, (aeron_context_t *context, uint64_t value)) \
    X(int, aeron_context_set_resource_linger_duration_ns, (aeron_context_t *context, uint64_t value)) \
    X(int, aeron_context_set_idle_sleep_duration_ns, (aeron_context_t *context, uint64_t value)) \
    X(int, aeron_context_set_idle_strategy_init_args, (aeron_context_t *context, const char *value)) \
    X(int, aeron_context_set_idle_strategy, (aeron_context_t *context, const char *value)) \
    X(int, aeron_context_set_error_handler, \
        (aeron_context_t *context, aeron_error_handler_t handler, void *clientd)) \
    X(int, aeron_init, (aeron_t **client, aeron_context_t *context)) \
    X(int, aeron_start, (aeron_t *client)) \
    X(int, aeron_close, (aeron_t *client)) \
    X(bool, aeron_is_closed, (aeron_t *client)) \
    X(int64_t, aeron_client_id, (aeron_t *client)) \
    X(int, aeron_async_add_publication, \
        (aeron_async_add_publication_t **async, aeron_t *client, const char *uri, int32_t stream_id)) \
    X(int, aeron_async_add_publication_poll, \
        (aeron_publication_t **publication, aeron_async_add_publication_t *async)) \
    X(int, aeron_async_add_publication_cancel, (aeron_t *client, aeron_async_add_publication_t *async)) \
    X(int, aeron_async_add_exclusive_publication, \
        (aeron_async_add_exclusive_publication_t **async, aeron_t *client, const char *uri, int32_t stream_id)) \
    X(int, aeron_async_add_exclusive_publication_poll, \
        (aeron_exclusive_publication_t **publication, aeron_async_add_exclusive_publication_t *async)) \
    X(int, aeron_async_add_exclusive_publication_cancel, \
        (aeron_t *client, aeron_async_add_exclusive_publication_t *async)) \
    X(int, aeron_async_add_subscription, \
        (aeron_async_add_subscription_t **async, aeron_t *client, const char *uri, int32_t stream_id, \
        aeron_on_available_image_t on_available_image_handler, void *on_available_image_clientd, \
        aeron_on_unavailable_image_t on_unavailable_image_handler, void *on_unavailable_image_clientd)) \
    X(int, aeron_async_add_subscription_poll, \
        (aeron_subscription_t **subscription, aeron_async_add_subscription_t *async)) \
    X(int, aeron_async_add_subscription_cancel, (aeron_t *client, aeron_async_add_subscription_t *async)) \
    X(int, aeron_async_add_counter, \
        (aeron_async_add_counter_t **async, aeron_t *client, int32_t type_id, const uint8_t *key_buffer, \
        size_t key_buffer_length, const char *label_buffer, size_t label_buffer_length)) \
    X(int, aeron_async_add_counter_poll, (aeron_counter_t **counter, aeron_async_add_counter_t *async)) \
    X(int, aeron_async_add_counter_cancel, (aeron_t *client, aeron_async_add_counter_t *async)) \
    X(int, aeron_buffer_claim_commit, (aeron_buffer_claim_t *buffer_claim)) \
    X(int, aeron_buffer_claim_abort, (aeron_buffer_claim_t *buffer_claim)) \
    X(int64_t, aeron_publication_offer, \
        (aeron_publication_t *publication, const uint8_t *buffer, size_t length, \
        aeron_reserved_value_supplier_t reserved_value_supplier, void *clientd)) \
    X(int64_t, aeron_publication_try_claim, \
        (aeron_publication_t *publication, size_t length, aeron_buffer_claim_t *buffer_claim)) \
    X(int, aeron_publication_constants, \
        (aeron_publication_t *publication, aeron_publication_constants_t *constants)) \
    X(int64_t, aeron_publication_position, (aeron_publication_t *publication)) \
    X(int64_t, aeron_publication_position_limit, (aeron_publication_t *publication)) \
    X(bool, aeron_publication_is_connected, (aeron_publication_t *publication)) \
    X(int, aeron_publication_close, \
        (aeron_publication_t *publication, aeron_notification_t on_close_complete, \
        void *on_close_complete_clientd)) \
    X(int64_t, aeron_exclusive_publication_offer, \
        (aeron_exclusive_publication_t *publication, const uint8_t *buffer, size_t length, \
        aeron_reserved_value_supplier_t reserved_value_supplier, void *clientd)) \
    X(int64_t, aeron_exclusive_publication_try_claim, \
        (aeron_exclusive_publication_t *publication, size_t length, aeron_buffer_claim_t *buffer_claim)) \
    X(int, aeron_exclusive_publication_constants, \
        (aeron_exclusive_publication_t *publication, aeron_publication_constants_t *constants)) \
    X(int64_t, aeron_exclusive_publication_position, (aeron_exclusive_publication_t *publication)) \
    X(int64_t, aeron_exclusive_publication_position_limit, (aeron_exclusive_publication_t *publication)) \
    X(bool, aeron_exclusive_publication_is_connected, (aeron_exclusive_publication_t *publication)) \
    X(int, aeron_exclusive_publication_close, \
        (aeron_exclusive_publication_t *publication, aeron_notification_t on_close_complete, \
        void *on_close_complete_clientd)) \
    X(int, aeron_subscription_poll, \
        (aeron_subscription_t *subscription, aeron_fragment_handler_t handler, void *clientd, \
        size_t fragment_limit)) \
    X(int, aeron_subscription_controlled_poll, \
        (aeron_subscription_t *subscription, aeron_controlled_fragment_handler_t handler, void *clientd, \
        size_t fragment_limit)) \
    X(int, aeron_subscription_image_count, (aeron_subscription_t *subscription)) \
    X(void, aeron_subscription_for_each_image, \
        (aeron_subscription_t *subscription, void (*handler)(aeron_image_t *image, void *clientd), void *clientd)) \
    X(int, aeron_subscription_close, \
        (aeron_subscription_t *subscription, aeron_notification_t on_close_complete, \
        void *on_close_complete_clientd)) \
    X(int, aeron_image_constants, (aeron_image_t *image, aeron_image_constants_t *constants)) \
    X(int64_t, aeron_image_position, (aeron_image_t *image)) \
    X(bool, aeron_image_is_end_of_stream, (aeron_image_t *image)) \
    X(bool, aeron_image_is_closed, (aeron_image_t *image)) \
    X(int64_t *, aeron_counter_addr, (aeron_counter_t *counter)) \
    X(int, aeron_counter_constants, (aeron_counter_t *counter, aeron_counter_constants_t *constants)) \
    X(int, aeron_counter_close, \
        (aeron_counter_t *counter, aeron_notification_t on_close_complete, void *on_close_complete_clientd)) \
    X(const char *, aeron_version_full, (void)) \
    X(int, aeron_errcode, (void)) \
    X(const char *, aeron_errmsg, (void)) \
    X(void, aeron_err_clear, (void)) \
    X(int, aeron_driver_context_init, (aeron_driver_context_t **context)) \
    X(int, aeron_driver_context_close, (aeron_driver_context_t *context)) \
    X(int, aeron_driver_context_set_dir, (aeron_driver_context_t *context, const char *value)) \
    X(int, aeron_driver_context_set_dir_warn_if_exists, (aeron_driver_context_t *context, bool value)) \
    X(int, aeron_driver_context_set_dir_delete_on_start, (aeron_driver_context_t *context, bool value)) \
    X(int, aeron_driver_context_set_dir_delete_on_shutdown, (aeron_driver_context_t *context, bool value)) \
    X(int, aeron_driver_context_set_threading_mode, \
        (aeron_driver_context_t *context, aeron_threading_mode_t mode)) \
    X(int, aeron_driver_context_set_shared_idle_strategy, (aeron_driver_context_t *context, const char *value)) \
    X(int, aeron_driver_context_set_conductor_idle_strategy, (aeron_driver_context_t *context, const char *value)) \
    X(int, aeron_driver_context_set_sender_idle_strategy, (aeron_driver_context_t *context, const char *value)) \
    X(int, aeron_driver_context_set_receiver_idle_strategy, (aeron_driver_context_t *context, const char *value)) \
    X(int, aeron_driver_context_set_sharednetwork_idle_strategy, \
        (aeron_driver_context_t *context, const char *value)) \
    X(int, aeron_driver_context_set_counters_buffer_length, (aeron_driver_context_t *context, size_t length)) \
    X(int, aeron_driver_context_set_client_liveness_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_publication_unblock_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_publication_linger_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_image_liveness_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_untethered_window_limit_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_untethered_linger_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_untethered_resting_timeout_ns, \
        (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_timer_interval_ns, (aeron_driver_context_t *context, uint64_t value)) \
    X(int, aeron_driver_context_set_term_buffer_length, (aeron_driver_context_t *context, size_t value)) \
    X(int, aeron_driver_context_set_ipc_term_buffer_length, (aeron_driver_context_t *context, size_t value)) \
    X(int, aeron_driver_init, (aeron_driver_t **driver, aeron_driver_context_t *context)) \
    X(int, aeron_driver_start, (aeron_driver_t *driver, bool manual_main_loop)) \
    X(int, aeron_driver_close, (aeron_driver_t *driver))

/* The table: fp_api.aeron_close(client) and so on. */
#define FP_FIELD(result, name, parameters) result (*name) parameters;
static struct { FP_AERON_FUNCTIONS(FP_FIELD) } fp_api;
#undef FP_FIELD

/* What Aeron has since it has a thread for slow work; before, there is nothing to set. */
typedef int (*fp_set_strategy_fn)(aeron_driver_context_t *context, const char *value);
static fp_set_strategy_fn fp_set_resource_agent_idle;

/* Fills the table from an opened library; writes the names it lacks, each followed by a space, and counts them. */
static int fp_api_load(void *library, char *missing, size_t length)
{
    int lacking = 0;
    size_t used = 0;
    missing[0] = '\0';
#define FP_LOAD(result, name, parameters) \
    *(void **)(&fp_api.name) = dlsym(library, #name); \
    if (NULL == fp_api.name) \
    { \
        int wrote = snprintf(missing + used, length - used, "%s ", #name); \
        used = used + (size_t)wrote < length ? used + (size_t)wrote : length - 1; \
        lacking++; \
    }
    FP_AERON_FUNCTIONS(FP_LOAD)
#undef FP_LOAD
    *(void **)(&fp_set_resource_agent_idle) = dlsym(
        library, "aeron_driver_context_set_native_resource_agent_idle_strategy");
    return lacking;
}

/* fork: the child sees a higher count than the one its inherited objects were made with. */
static atomic_uint fp_fork_count;

static void fp_on_fork_child(void)
{
    atomic_fetch_add(&fp_fork_count, 1);
}

static int fp_watch_forks(void)
{
    return pthread_atfork(NULL, NULL, fp_on_fork_child);
}

static unsigned fp_forks(void)
{
    return atomic_load_explicit(&fp_fork_count, memory_order_relaxed);
}

/* Threads started between these two never see a signal: those are for Python's main thread. */
static void fp_block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

static void fp_restore_signals(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* What a conductor thread reports: the last errors, and whether one of them ended the client. */
#define FP_ERRORS_KEPT 16
#define FP_ERROR_TEXT 256
#define FP_FATAL_FIRST 1000 /* AERON_CLIENT_ERROR_DRIVER_TIMEOUT */
#define FP_FATAL_LAST 1002  /* AERON_CLIENT_ERROR_CONDUCTOR_SERVICE_TIMEOUT */

typedef struct
{
    atomic_int lost; /* 0, or the code that ended the client */
    pthread_mutex_t mutex;
    uint64_t count;
    int codes[FP_ERRORS_KEPT];
    char texts[FP_ERRORS_KEPT][FP_ERROR_TEXT];
}
fp_report_t;

static void fp_report_init(fp_report_t *report)
{
    memset(report, 0, sizeof(*report));
    pthread_mutex_init(&report->mutex, NULL);
}

/* The error handler: it only records. Codes arrive positive from the conductor and negative from some callers. */
static void fp_report_error(void *clientd, int code, const char *message)
{
    fp_report_t *report = (fp_report_t *)clientd;
    const int magnitude = code < 0 ? -code : code;

    pthread_mutex_lock(&report->mutex);
    const size_t index = (size_t)(report->count++ % FP_ERRORS_KEPT);
    report->codes[index] = magnitude;
    snprintf(report->texts[index], FP_ERROR_TEXT, "%s", NULL == message ? "" : message);
    pthread_mutex_unlock(&report->mutex);

    if (FP_FATAL_FIRST <= magnitude && magnitude <= FP_FATAL_LAST)
    {
        int none = 0;
        atomic_compare_exchange_strong(&report->lost, &none, magnitude);
    }
}

static int fp_report_lost(fp_report_t *report)
{
    return atomic_load_explicit(&report->lost, memory_order_acquire);
}

/* How many errors there were. */
static uint64_t fp_report_count(fp_report_t *report)
{
    pthread_mutex_lock(&report->mutex);
    const uint64_t count = report->count;
    pthread_mutex_unlock(&report->mutex);
    return count;
}

/* Copies the error that is `back` before the newest; 0 when there is none that far back. */
static int fp_report_read(fp_report_t *report, size_t back, int *code, char *text)
{
    int found = 0;

    pthread_mutex_lock(&report->mutex);
    if (back < report->count && back < FP_ERRORS_KEPT)
    {
        const size_t index = (size_t)((report->count - 1 - back) % FP_ERRORS_KEPT);
        *code = report->codes[index];
        memcpy(text, report->texts[index], FP_ERROR_TEXT);
        found = 1;
    }
    pthread_mutex_unlock(&report->mutex);

    return found;
}

#endif
