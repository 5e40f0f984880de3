"""The C side as Cython sees it; the prototypes themselves, and the check against Aeron's headers, are in aeron_api.h."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_trylock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)


cdef extern from "aeron_api.h" nogil:
    ctypedef struct aeron_context_t
    ctypedef struct aeron_t
    ctypedef struct aeron_publication_t
    ctypedef struct aeron_exclusive_publication_t
    ctypedef struct aeron_subscription_t
    ctypedef struct aeron_counter_t
    ctypedef struct aeron_driver_context_t
    ctypedef struct aeron_driver_t
    ctypedef struct aeron_async_add_publication_t

    ctypedef enum aeron_threading_mode_t:
        AERON_THREADING_MODE_DEDICATED
        AERON_THREADING_MODE_SHARED_NETWORK
        AERON_THREADING_MODE_SHARED

    ctypedef struct aeron_buffer_claim_t:
        uint8_t *frame_header
        uint8_t *data
        size_t length

    ctypedef struct aeron_publication_constants_t:
        int64_t original_registration_id
        int64_t registration_id
        size_t term_buffer_length
        size_t max_message_length
        size_t max_payload_length
        int32_t stream_id
        int32_t session_id

    ctypedef struct aeron_counter_constants_t:
        int64_t registration_id
        int32_t counter_id

    ctypedef void (*aeron_error_handler_t)(void *, int, const char *) noexcept nogil

    ctypedef struct fp_report_t:
        uint64_t count

    enum:
        FP_ERROR_TEXT

    int fp_api_load(void *library, char *missing, size_t length)
    int fp_watch_forks()
    void fp_block_signals(sigset_t *before)
    void fp_restore_signals(const sigset_t *before)
    unsigned int fp_forks()
    void fp_report_init(fp_report_t *report)
    void fp_report_error(void *clientd, int code, const char *message) noexcept
    int fp_report_lost(fp_report_t *report)
    uint64_t fp_report_count(fp_report_t *report)
    int fp_report_read(fp_report_t *report, size_t back, int *code, char *text)

    int context_init "fp_api.aeron_context_init"(aeron_context_t **)
    int context_close "fp_api.aeron_context_close"(aeron_context_t *)
    int context_set_dir "fp_api.aeron_context_set_dir"(aeron_context_t *, const char *)
    int context_set_client_name "fp_api.aeron_context_set_client_name"(aeron_context_t *, const char *)
    int context_set_driver_timeout_ms "fp_api.aeron_context_set_driver_timeout_ms"(aeron_context_t *, uint64_t)
    int context_set_keepalive_interval_ns "fp_api.aeron_context_set_keepalive_interval_ns"(aeron_context_t *, uint64_t)
    int context_set_resource_linger_duration_ns "fp_api.aeron_context_set_resource_linger_duration_ns"(
        aeron_context_t *, uint64_t)
    int context_set_idle_sleep_duration_ns "fp_api.aeron_context_set_idle_sleep_duration_ns"(aeron_context_t *, uint64_t)
    int context_set_idle_strategy_init_args "fp_api.aeron_context_set_idle_strategy_init_args"(
        aeron_context_t *, const char *)
    int context_set_idle_strategy "fp_api.aeron_context_set_idle_strategy"(aeron_context_t *, const char *)
    int context_set_error_handler "fp_api.aeron_context_set_error_handler"(
        aeron_context_t *, aeron_error_handler_t, void *)

    int client_init "fp_api.aeron_init"(aeron_t **, aeron_context_t *)
    int client_start "fp_api.aeron_start"(aeron_t *)
    int client_close "fp_api.aeron_close"(aeron_t *)
    bint client_is_closed "fp_api.aeron_is_closed"(aeron_t *)
    int64_t client_id "fp_api.aeron_client_id"(aeron_t *)

    # The four kinds of asynchronous adds share one C type.
    int async_add_publication "fp_api.aeron_async_add_publication"(
        aeron_async_add_publication_t **, aeron_t *, const char *, int32_t)
    int async_add_publication_poll "fp_api.aeron_async_add_publication_poll"(
        aeron_publication_t **, aeron_async_add_publication_t *)
    int async_add_publication_cancel "fp_api.aeron_async_add_publication_cancel"(
        aeron_t *, aeron_async_add_publication_t *)
    int async_add_exclusive_publication "fp_api.aeron_async_add_exclusive_publication"(
        aeron_async_add_publication_t **, aeron_t *, const char *, int32_t)
    int async_add_exclusive_publication_poll "fp_api.aeron_async_add_exclusive_publication_poll"(
        aeron_exclusive_publication_t **, aeron_async_add_publication_t *)
    int async_add_exclusive_publication_cancel "fp_api.aeron_async_add_exclusive_publication_cancel"(
        aeron_t *, aeron_async_add_publication_t *)
    int async_add_subscription "fp_api.aeron_async_add_subscription"(
        aeron_async_add_publication_t **, aeron_t *, const char *, int32_t, void *, void *, void *, void *)
    int async_add_subscription_poll "fp_api.aeron_async_add_subscription_poll"(
        aeron_subscription_t **, aeron_async_add_publication_t *)
    int async_add_subscription_cancel "fp_api.aeron_async_add_subscription_cancel"(
        aeron_t *, aeron_async_add_publication_t *)
    int async_add_counter "fp_api.aeron_async_add_counter"(
        aeron_async_add_publication_t **, aeron_t *, int32_t, const uint8_t *, size_t, const char *, size_t)
    int async_add_counter_poll "fp_api.aeron_async_add_counter_poll"(
        aeron_counter_t **, aeron_async_add_publication_t *)
    int async_add_counter_cancel "fp_api.aeron_async_add_counter_cancel"(
        aeron_t *, aeron_async_add_publication_t *)

    int buffer_claim_commit "fp_api.aeron_buffer_claim_commit"(aeron_buffer_claim_t *)
    int buffer_claim_abort "fp_api.aeron_buffer_claim_abort"(aeron_buffer_claim_t *)
    int64_t publication_offer "fp_api.aeron_publication_offer"(
        aeron_publication_t *, const uint8_t *, size_t, void *, void *)
    int64_t publication_try_claim "fp_api.aeron_publication_try_claim"(
        aeron_publication_t *, size_t, aeron_buffer_claim_t *)
    int publication_constants "fp_api.aeron_publication_constants"(
        aeron_publication_t *, aeron_publication_constants_t *)
    int64_t publication_position "fp_api.aeron_publication_position"(aeron_publication_t *)
    int64_t publication_position_limit "fp_api.aeron_publication_position_limit"(aeron_publication_t *)
    bint publication_is_connected "fp_api.aeron_publication_is_connected"(aeron_publication_t *)
    int publication_close "fp_api.aeron_publication_close"(aeron_publication_t *, void *, void *)
    int64_t exclusive_publication_offer "fp_api.aeron_exclusive_publication_offer"(
        aeron_exclusive_publication_t *, const uint8_t *, size_t, void *, void *)
    int64_t exclusive_publication_try_claim "fp_api.aeron_exclusive_publication_try_claim"(
        aeron_exclusive_publication_t *, size_t, aeron_buffer_claim_t *)
    int exclusive_publication_constants "fp_api.aeron_exclusive_publication_constants"(
        aeron_exclusive_publication_t *, aeron_publication_constants_t *)
    int64_t exclusive_publication_position "fp_api.aeron_exclusive_publication_position"(
        aeron_exclusive_publication_t *)
    int64_t exclusive_publication_position_limit "fp_api.aeron_exclusive_publication_position_limit"(
        aeron_exclusive_publication_t *)
    bint exclusive_publication_is_connected "fp_api.aeron_exclusive_publication_is_connected"(
        aeron_exclusive_publication_t *)
    int exclusive_publication_close "fp_api.aeron_exclusive_publication_close"(
        aeron_exclusive_publication_t *, void *, void *)

    int subscription_image_count "fp_api.aeron_subscription_image_count"(aeron_subscription_t *)
    int subscription_close "fp_api.aeron_subscription_close"(aeron_subscription_t *, void *, void *)

    int64_t *counter_addr "fp_api.aeron_counter_addr"(aeron_counter_t *)
    int counter_constants "fp_api.aeron_counter_constants"(aeron_counter_t *, aeron_counter_constants_t *)
    int counter_close "fp_api.aeron_counter_close"(aeron_counter_t *, void *, void *)

    const char *version_full "fp_api.aeron_version_full"()
    int errcode "fp_api.aeron_errcode"()
    const char *errmsg "fp_api.aeron_errmsg"()
    void err_clear "fp_api.aeron_err_clear"()

    int driver_context_init "fp_api.aeron_driver_context_init"(aeron_driver_context_t **)
    int driver_context_close "fp_api.aeron_driver_context_close"(aeron_driver_context_t *)
    int driver_context_set_dir "fp_api.aeron_driver_context_set_dir"(aeron_driver_context_t *, const char *)
    int driver_context_set_dir_warn_if_exists "fp_api.aeron_driver_context_set_dir_warn_if_exists"(
        aeron_driver_context_t *, bint)
    int driver_context_set_dir_delete_on_start "fp_api.aeron_driver_context_set_dir_delete_on_start"(
        aeron_driver_context_t *, bint)
    int driver_context_set_dir_delete_on_shutdown "fp_api.aeron_driver_context_set_dir_delete_on_shutdown"(
        aeron_driver_context_t *, bint)
    int driver_context_set_threading_mode "fp_api.aeron_driver_context_set_threading_mode"(
        aeron_driver_context_t *, aeron_threading_mode_t)
    int driver_context_set_shared_idle_strategy "fp_api.aeron_driver_context_set_shared_idle_strategy"(
        aeron_driver_context_t *, const char *)
    int driver_context_set_conductor_idle_strategy "fp_api.aeron_driver_context_set_conductor_idle_strategy"(
        aeron_driver_context_t *, const char *)
    int (*fp_set_resource_agent_idle)(aeron_driver_context_t *, const char *)
    int driver_context_set_sender_idle_strategy "fp_api.aeron_driver_context_set_sender_idle_strategy"(
        aeron_driver_context_t *, const char *)
    int driver_context_set_receiver_idle_strategy "fp_api.aeron_driver_context_set_receiver_idle_strategy"(
        aeron_driver_context_t *, const char *)
    int driver_context_set_sharednetwork_idle_strategy "fp_api.aeron_driver_context_set_sharednetwork_idle_strategy"(
        aeron_driver_context_t *, const char *)
    int driver_context_set_counters_buffer_length "fp_api.aeron_driver_context_set_counters_buffer_length"(
        aeron_driver_context_t *, size_t)
    int driver_context_set_client_liveness_timeout_ns "fp_api.aeron_driver_context_set_client_liveness_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_publication_unblock_timeout_ns "fp_api.aeron_driver_context_set_publication_unblock_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_publication_linger_timeout_ns "fp_api.aeron_driver_context_set_publication_linger_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_image_liveness_timeout_ns "fp_api.aeron_driver_context_set_image_liveness_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_untethered_window_limit_timeout_ns "fp_api.aeron_driver_context_set_untethered_window_limit_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_untethered_linger_timeout_ns "fp_api.aeron_driver_context_set_untethered_linger_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_untethered_resting_timeout_ns "fp_api.aeron_driver_context_set_untethered_resting_timeout_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_timer_interval_ns "fp_api.aeron_driver_context_set_timer_interval_ns"(
        aeron_driver_context_t *, uint64_t)
    int driver_context_set_term_buffer_length "fp_api.aeron_driver_context_set_term_buffer_length"(
        aeron_driver_context_t *, size_t)
    int driver_context_set_ipc_term_buffer_length "fp_api.aeron_driver_context_set_ipc_term_buffer_length"(
        aeron_driver_context_t *, size_t)
    int driver_init "fp_api.aeron_driver_init"(aeron_driver_t **, aeron_driver_context_t *)
    int driver_start "fp_api.aeron_driver_start"(aeron_driver_t *, bint)
    int driver_close "fp_api.aeron_driver_close"(aeron_driver_t *)


cdef extern from "aeron_idle.h" nogil:
    int fp_idle_export()
    void fp_idle_ask()


cdef extern from "aeron_receive.h" nogil:
    enum:
        FP_PATTERN_MAX

    ctypedef struct fp_filter_t:
        int32_t schema_id
        int32_t template_id
        size_t offset
        bint after_block
        size_t length
        uint8_t *pattern

    ctypedef void (*fp_deliver_t)(void *, const uint8_t *, size_t) noexcept
    ctypedef void (*fp_retract_t)(void *) noexcept

    ctypedef struct fp_receiver_t:
        fp_filter_t filter
        int32_t stream_id
        fp_deliver_t deliver
        fp_retract_t retract
        void *clientd
        size_t most
        int64_t reserved_value
        int partial_count
        uint64_t delivered
        uint64_t filtered
        uint64_t broken

    ctypedef struct fp_image_t:
        int32_t session_id
        int32_t initial_term_id
        int64_t correlation_id
        int64_t join_position
        int64_t position
        int64_t term_length
        int64_t mtu_length
        int closed
        int end_of_stream
        char *source

    ctypedef struct fp_images_t:
        int count
        fp_image_t *images

    int fp_receiver_poll(fp_receiver_t *receiver, aeron_subscription_t *subscription, size_t limit)
    void fp_receiver_clear(fp_receiver_t *receiver)
    ctypedef struct fp_coming_t:
        const uint8_t *slot
        const uint8_t *payload

    void fp_images_read(fp_images_t *images, aeron_subscription_t *subscription)


cdef extern from "aeron_ahead.h" nogil:
    ctypedef struct fp_ahead_t:
        pass

    void fp_ahead_sent(fp_ahead_t *ahead, uint8_t *payload, size_t length, int64_t position, int64_t term)


cdef extern from "aeron_drain.h" nogil:
    ctypedef uint64_t counter_t "atomic_uint_fast64_t"

    ctypedef struct fp_straight_t:
        fp_coming_t coming
        bint emptied
        counter_t total

    ctypedef struct fp_drain_t:
        bint running
        fp_receiver_t receiver
        fp_straight_t straight
        uint64_t capacity
        counter_t head
        counter_t tail
        uint64_t overwritten
        uint64_t oversized
        bint ended
        int image_count

    void fp_sleep_ns(int64_t duration)
    int fp_standby_watch_forks()
    fp_drain_t *fp_drain_new(size_t capacity, size_t max_message, int64_t idle_ns)
    int fp_drain_start(fp_drain_t *drain, aeron_subscription_t *subscription, fp_report_t *report)
    void fp_drain_stop(fp_drain_t *drain)
    void fp_drain_free(fp_drain_t *drain)
    int fp_drain_wait(fp_drain_t *drain, int64_t timeout_ns)
    void fp_drain_read_images(fp_drain_t *drain, fp_images_t *found)
    int fp_drain_turn(fp_drain_t *drain)
    size_t fp_drain_take(fp_drain_t *drain, uint8_t *records, size_t most, size_t limit)
    uint64_t fp_drain_queued(fp_drain_t *drain)
    uint8_t *fp_drain_slot(fp_drain_t *drain, uint64_t number)
    void fp_drain_forward(counter_t *end, int64_t by)
    int fp_drain_event_fd(fp_drain_t *drain)
    void fp_drain_quiet(fp_drain_t *drain)
    void fp_drain_lock(fp_drain_t *drain)
    void fp_drain_unlock(fp_drain_t *drain)


cdef extern from "aeron_ears.h" nogil:
    ctypedef struct fp_ear_t:
        pthread_mutex_t mutex

    ctypedef struct fp_turn_t:
        bint wanted
        int event_fd

    void fp_ear_point(fp_ear_t *ear, aeron_subscription_t *subscription, fp_report_t *report)
    void fp_turn_init(fp_turn_t *turn)
    bint fp_turn_attend(fp_turn_t *turn)
    bint fp_turn_take(fp_turn_t *turn)
    bint fp_turn_is_watched(fp_turn_t *turn)
    void fp_turn_done(fp_turn_t *turn, int64_t rest_ns, bint busy, bint undone)
    void fp_turn_hurry(fp_turn_t *turn, int64_t rest_ns)
    void fp_turn_nudge(fp_turn_t *turn)
    bint fp_ears_wait(
        fp_ear_t **ears, size_t count, fp_turn_t *turn, int64_t timeout_ns, int64_t *nap_ns, int64_t least_ns,
        int64_t most_ns)


cdef extern from "aeron_heartbeat.h" nogil:
    ctypedef struct fp_beat_t
    ctypedef struct fp_heart_t

    fp_heart_t *fp_heart_new()
    int fp_heart_start(fp_heart_t *heart)
    void fp_heart_stop(fp_heart_t *heart)
    void fp_heart_free(fp_heart_t *heart)
    void fp_heart_bind(
        fp_heart_t *heart, const void *owner, aeron_publication_t *publication, fp_report_t *report)
    void fp_heart_add(
        fp_heart_t *heart, fp_beat_t *beat, const void *owner, aeron_publication_t *publication, fp_report_t *report)
    void fp_heart_remove(fp_heart_t *heart, fp_beat_t *beat)
    fp_beat_t *fp_beat_new(
        const uint8_t *message, size_t length, int64_t period_ns, int64_t stamp_offset, int64_t give_up_ns)
    void fp_beat_free(fp_beat_t *beat)
    int fp_beat_update(fp_heart_t *heart, fp_beat_t *beat, const uint8_t *message, size_t length)
    int64_t fp_beat_last_sent_ns(fp_beat_t *beat)
    bint fp_beat_gave_up(fp_beat_t *beat)
    uint64_t fp_beat_sent(fp_beat_t *beat)
    uint64_t fp_beat_failed(fp_beat_t *beat)
