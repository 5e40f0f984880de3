# The media driver, in this process, in threads of its own.

THREADING = {
    "shared": AERON_THREADING_MODE_SHARED,
    "shared-network": AERON_THREADING_MODE_SHARED_NETWORK,
    "dedicated": AERON_THREADING_MODE_DEDICATED,
}


cdef const char *IDLE_CONDUCTOR = "framepool_idle_conductor"
cdef const char *IDLE_RESOURCES = "framepool_idle_resources"
cdef const char *IDLE_NETWORK = "framepool_idle_network"


cdef class Driver:
    """Aeron's media driver. It neither looks for another one on its directory nor deletes it: `transport` does."""

    cdef aeron_driver_context_t *context
    cdef aeron_driver_t *c
    cdef unsigned int forks

    def __cinit__(self):
        self.forks = fp_forks()

    def __dealloc__(self):
        self.close()

    def start(
        self,
        directory,
        *,
        str threading,
        uint64_t timer_interval_ns,
        uint64_t client_liveness_timeout_ns,
        uint64_t publication_unblock_timeout_ns,
        uint64_t publication_linger_timeout_ns,
        uint64_t image_liveness_timeout_ns,
        uint64_t untethered_window_limit_timeout_ns,
        uint64_t untethered_linger_timeout_ns,
        uint64_t untethered_resting_timeout_ns,
        size_t term_length,
        size_t ipc_term_length,
        size_t counters_length,
    ):
        """Makes the directory and starts. The lock is held throughout: nothing of Python runs beside it."""
        cdef bytes raw = os.fsencode(directory)
        cdef sigset_t signals
        cdef int result
        if self.context != NULL:
            raise TransportError("the media driver was started already")
        result = driver_context_init(&self.context)
        if result == 0:
            result = (
                driver_context_set_dir(self.context, raw)
                | driver_context_set_dir_warn_if_exists(self.context, False)
                | driver_context_set_dir_delete_on_start(self.context, False)
                | driver_context_set_dir_delete_on_shutdown(self.context, False)
                | driver_context_set_threading_mode(self.context, THREADING[threading])
                | driver_context_set_shared_idle_strategy(self.context, IDLE_NETWORK)
                | driver_context_set_conductor_idle_strategy(self.context, IDLE_CONDUCTOR)
                | driver_context_set_sharednetwork_idle_strategy(self.context, IDLE_NETWORK)
                | driver_context_set_sender_idle_strategy(self.context, IDLE_NETWORK)
                | driver_context_set_receiver_idle_strategy(self.context, IDLE_NETWORK)
                | driver_context_set_timer_interval_ns(self.context, timer_interval_ns)
                | driver_context_set_client_liveness_timeout_ns(self.context, client_liveness_timeout_ns)
                | driver_context_set_publication_unblock_timeout_ns(self.context, publication_unblock_timeout_ns)
                | driver_context_set_publication_linger_timeout_ns(self.context, publication_linger_timeout_ns)
                | driver_context_set_image_liveness_timeout_ns(self.context, image_liveness_timeout_ns)
                | driver_context_set_untethered_window_limit_timeout_ns(
                    self.context, untethered_window_limit_timeout_ns)
                | driver_context_set_untethered_linger_timeout_ns(self.context, untethered_linger_timeout_ns)
                | driver_context_set_untethered_resting_timeout_ns(self.context, untethered_resting_timeout_ns)
                | driver_context_set_term_buffer_length(self.context, term_length)
                | driver_context_set_ipc_term_buffer_length(self.context, ipc_term_length)
                | driver_context_set_counters_buffer_length(self.context, counters_length)
            )
        if result == 0 and fp_set_resource_agent_idle != NULL:
            result = fp_set_resource_agent_idle(self.context, IDLE_RESOURCES)
        if result == 0:
            result = driver_init(&self.c, self.context)
        if result == 0:
            fp_block_signals(&signals)
            result = driver_start(self.c, False)
            fp_restore_signals(&signals)
        if result != 0:
            code, text = take_error()
            self.close()
            raise TransportError(f"the media driver does not start in {os.fsdecode(raw)}: {text}")

    @property
    def running(self):
        return self.c != NULL and self.forks == fp_forks()

    cpdef close(self):
        """Stops the driver's threads and unmaps its files. In a forked child it does nothing."""
        cdef aeron_driver_t *driver = self.c
        cdef aeron_driver_context_t *context = self.context
        self.c = NULL
        self.context = NULL
        if self.forks != fp_forks():
            return
        with nogil:
            if driver != NULL:
                driver_close(driver)
            if context != NULL:
                driver_context_close(context)
