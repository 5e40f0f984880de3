# The client and the base of everything it holds.

Recorded = namedtuple("Recorded", "code text")

cdef enum:
    CODE_DRIVER_TIMEOUT = 1000
    CODE_LAST_FATAL = 1002


@cython.no_gc_clear
cdef class Client:
    """A connection to a media driver, with Aeron's own conductor thread.

    `open` connects, `shut` drops the connection and leaves the children unbound so that `open` and `Child.add` can
    bind them again, `close` ends it for good.
    """

    def __cinit__(self, *args, **kwargs):
        self.forks = fp_forks()
        self.directory = ""
        self.lost_text = "not connected to a media driver"

    def __dealloc__(self):
        self.free()
        if self.heart != NULL and self.forks == fp_forks():
            fp_heart_free(self.heart)

    def open(
        self,
        directory,
        *,
        str name,
        uint64_t driver_timeout_ms,
        uint64_t keepalive_interval_ns,
        uint64_t resource_linger_ns,
        uint64_t idle_sleep_ns,
    ):
        """Connects, waiting up to `driver_timeout_ms` without the interpreter's lock."""
        cdef aeron_context_t *context = NULL
        cdef aeron_t *client = NULL
        cdef fp_report_t *report
        cdef sigset_t signals
        cdef int result
        cdef bytes raw_directory = os.fsencode(directory)
        cdef bytes raw_name = name.encode()
        cdef bytes idle = b"%d" % idle_sleep_ns
        self.check_owner()
        if self.c != NULL or self.opening:
            raise TransportError("the client is open already")
        self.directory = os.fsdecode(raw_directory)
        report = <fp_report_t *>PyMem_RawCalloc(1, sizeof(fp_report_t))
        if report == NULL:
            raise MemoryError
        fp_report_init(report)
        self.opening = True
        try:
            # The order matters: a strategy reads its arguments when it is set, and the sleep duration alone only
            # tells the conductor how often to look at its timers.
            result = context_init(&context)
            if result == 0:
                result = (
                    context_set_dir(context, raw_directory)
                    | context_set_client_name(context, raw_name)
                    | context_set_driver_timeout_ms(context, driver_timeout_ms)
                    | context_set_keepalive_interval_ns(context, keepalive_interval_ns)
                    | context_set_resource_linger_duration_ns(context, resource_linger_ns)
                    | context_set_idle_sleep_duration_ns(context, idle_sleep_ns)
                    | context_set_idle_strategy_init_args(context, idle)
                    | context_set_idle_strategy(context, b"framepool_idle_client")
                    | context_set_error_handler(context, fp_report_error, report)
                )
            if result == 0:
                with nogil:
                    result = client_init(&client, context)
                    if result == 0:
                        fp_block_signals(&signals)
                        result = client_start(client)
                        fp_restore_signals(&signals)
            if result != 0:
                code, text = take_error()
                if client != NULL:
                    client_close(client)
                context_close(context)
                PyMem_RawFree(report)
                error = TransportTimeout if code == CODE_DRIVER_TIMEOUT else TransportError
                raise error(f"cannot connect to the media driver in {self.directory}: {text}")
        finally:
            self.opening = False
        self.context = context
        self.c = client
        self.report = report
        self.forks = fp_forks()
        if self.closed:  # closed by another thread meanwhile
            self.free()
            raise TransportClosed("the client was closed while it connected")

    def shut(self):
        """Drops the connection; children lose their C objects but stay declared."""
        self.check_owner()
        self.lost_text = self.describe_loss()
        self.free()

    def close(self):
        """Ends the connection and everything on it. May be called twice, from any thread, with children in use."""
        self.closed = True
        if self.heart != NULL and self.forks == fp_forks():
            fp_heart_stop(self.heart)
        self.free()

    cdef void free(self) noexcept:
        """Takes the C objects from the children, then frees them all."""
        cdef Child child
        cdef PyObject *at = self.first
        cdef aeron_t *client = self.c
        cdef aeron_context_t *context = self.context
        cdef fp_report_t *report = self.report
        self.c = NULL
        self.context = NULL
        self.report = NULL
        if self.forks != fp_forks():
            return  # the parent owns them
        while at != NULL:
            child = <Child>at
            child.unbind()
            child.pending = NULL
            child.resource = NULL
            at = child.next
        if client != NULL:
            fp_idle_ask()  # its thread is to end soon
            with nogil:
                client_close(client)
                context_close(context)
            PyMem_RawFree(report)

    cdef bint alive(self) noexcept:
        return self.report != NULL and fp_report_lost(self.report) == 0 and self.forks == fp_forks()

    cdef int check_owner(self) except -1:
        if self.forks != fp_forks():
            raise ForkedError(
                "this Aeron client was inherited through fork; start processes with spawn and connect in each"
            )
        if self.closed:
            raise TransportClosed("the Aeron client was closed")
        return 0

    cdef int check(self) except -1:
        self.check_owner()
        if not self.alive() or client_is_closed(self.c):
            raise MediaDriverLost(self.describe_loss())
        return 0

    cdef str describe_loss(self):
        cdef int code
        cdef char text[FP_ERROR_TEXT]
        cdef size_t back = 0
        if self.report == NULL:
            return self.lost_text
        while fp_report_read(self.report, back, &code, text):
            if CODE_DRIVER_TIMEOUT <= code <= CODE_LAST_FATAL:
                return f"lost the media driver in {self.directory}: {tidy(<bytes>text)}; reconnect when it is back"
            back += 1
        return f"lost the media driver in {self.directory}; reconnect when it is back"

    @property
    def connected(self):
        """Whether there is a connection and nothing has been heard of its end."""
        return not self.closed and self.alive() and not client_is_closed(self.c)

    @property
    def client_id(self):
        self.check()
        return client_id(self.c)

    def verify(self):
        """Raises MediaDriverLost, TransportClosed or ForkedError where the client cannot be used."""
        self.check()

    def errors(self):
        """The last errors that Aeron reported, oldest first."""
        cdef int code
        cdef char text[FP_ERROR_TEXT]
        cdef size_t back = 0
        result = []
        if self.report != NULL and self.forks == fp_forks():
            while fp_report_read(self.report, back, &code, text):
                result.append(Recorded(code, tidy(<bytes>text)))
                back += 1
        result.reverse()
        return result

    def children(self):
        """What this client holds, in the order in which it was added."""
        cdef PyObject *at = self.first
        result = []
        while at != NULL:
            result.append(<Child>at)
            at = (<Child>at).next
        result.reverse()
        return result


@cython.no_gc_clear
cdef class Child:
    """What a client can hold. `pending` and `resource` are C objects of the client: one, the other or neither."""

    def __cinit__(self, Client client not None, *args, **kwargs):
        self.client = client
        pthread_mutex_init(&self.guard, NULL)
        self.next = client.first
        if client.first != NULL:
            (<Child>client.first).previous = <PyObject *>self
        client.first = <PyObject *>self

    def __dealloc__(self):
        if self.client is not None:
            self.release()
            pthread_mutex_destroy(&self.guard)

    # What each kind does.
    cdef int add_c(self, aeron_async_add_publication_t **pending) except -2:
        return -1

    cdef int poll_c(self) noexcept:
        """1: added and `resource` set, 0: not yet, -1: refused."""
        return -1

    cdef void cancel_c(self) noexcept:
        pass

    cdef void close_c(self) noexcept:
        pass

    cdef int bind(self) except -1:
        """After an add: reads what does not change."""
        return 0

    cdef void unbind(self) noexcept:
        """Before the C object goes: lets go of everything that points into it."""
        pass

    def add(self):
        """Asks the media driver for it; `poll_add` says when it is there."""
        self.check_open()
        self.client.check()
        if self.resource != NULL or self.pending != NULL:
            raise TransportError("added already")
        self.errors_before = fp_report_count(self.client.report)
        if self.add_c(&self.pending) < 0:
            self.pending = NULL
            code, text = take_error()
            raise TransportError(f"cannot ask for {self.describe()}: {text}")
        fp_idle_ask()

    def poll_add(self):
        """True once the media driver has answered; raises what it refused."""
        cdef int result
        self.check_open()
        self.client.check()
        if self.resource != NULL:
            return True
        if self.pending == NULL:
            raise TransportError("not asked for")
        result = self.poll_c()
        if result == 0:
            return False
        self.pending = NULL
        if result < 0:
            code, text = take_error()
            error = TransportTimeout if "imed out" in text or "no response" in text else TransportError
            if "please retry" in text:
                error = TransportBusy
            raise error(f"the media driver refused {self.describe()}: {text}")
        self.bind()
        return True

    def renew(self):
        """Gives it back and asks for it anew, keeping this object: a subscription that was put to rest for being
        slow (`tether=false`) joins again at once."""
        if not self.usable():
            self.refuse()
        self.unbind()
        self.close_c()
        self.resource = NULL
        self.add()

    def close(self):
        """Gives it up. May be called twice, after the client, and inside a handler."""
        if not self.closed:
            self.closed = True
            self.release()

    cdef void release(self) noexcept:
        if self.previous != NULL:
            (<Child>self.previous).next = self.next
        elif self.client.first == <PyObject *>self:
            self.client.first = self.next
        if self.next != NULL:
            (<Child>self.next).previous = self.previous
        self.next = NULL
        self.previous = NULL
        if self.client.c != NULL and self.client.forks == fp_forks():
            self.unbind()
            if self.pending != NULL:
                self.cancel_c()
            if self.resource != NULL:
                self.close_c()
            err_clear()
        self.pending = NULL
        self.resource = NULL

    cdef int check_open(self) except -1:
        if self.closed:
            raise TransportClosed(f"{self.describe()} was closed")
        return 0

    cdef bint usable(self) noexcept:
        return self.resource != NULL and self.client.alive()

    cdef int refuse(self) except -1:
        """Raises why it cannot be used."""
        self.client.check_owner()
        self.check_open()
        self.client.check()
        if self.client.rejoining:
            raise MediaDriverLost(f"{self.describe()} is being added again after the loss of the media driver")
        raise TransportError(f"{self.describe()} is still being added")

    cdef int hold(self) except -1:
        """Keeps the C object from being freed while it is used without the interpreter's lock; `let_go` ends it."""
        if not self.usable():
            self.refuse()
        if pthread_mutex_trylock(&self.guard):
            raise TransportError(f"{self.describe()} is in use by another thread")
        return 0

    cdef void let_go(self) noexcept nogil:
        pthread_mutex_unlock(&self.guard)

    cdef void await_holder(self) noexcept:
        """Until whoever holds it has let go, for which the interpreter's lock is not needed."""
        pthread_mutex_lock(&self.guard)
        pthread_mutex_unlock(&self.guard)

    def describe(self):
        return f"{type(self).__name__} of stream {self.stream_id} on {self.channel}"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        state = "closed" if self.closed else "open" if self.usable() else "unbound"
        return f"<{self.describe()}, {state}>"


@cython.final
@cython.no_gc_clear
cdef class Counter(Child):
    """A 64-bit value that every program on the machine can read by its label (`transport.cnc`)."""

    cdef readonly str label
    cdef readonly int32_t type_id
    cdef readonly bytes key
    cdef readonly int32_t counter_id
    cdef readonly int64_t registration_id
    cdef bytes raw_label
    cdef int64_t *address

    def __init__(self, Client client, int32_t type_id, str label, bytes key=b""):
        self.type_id = type_id
        self.label = label
        self.raw_label = label.encode()
        self.key = key
        self.counter_id = -1
        self.registration_id = -1
        if len(self.raw_label) > 380 or len(key) > 112:
            raise ValueError("a counter's label has at most 380 bytes and its key 112")

    cdef int add_c(self, aeron_async_add_publication_t **pending) except -2:
        return async_add_counter(
            pending, self.client.c, self.type_id, <const uint8_t *>PyBytes_AS_STRING(self.key), len(self.key),
            PyBytes_AS_STRING(self.raw_label), len(self.raw_label),
        )

    cdef int poll_c(self) noexcept:
        return async_add_counter_poll(<aeron_counter_t **>&self.resource, self.pending)

    cdef void cancel_c(self) noexcept:
        async_add_counter_cancel(self.client.c, self.pending)

    cdef void close_c(self) noexcept:
        counter_close(<aeron_counter_t *>self.resource, NULL, NULL)

    cdef int bind(self) except -1:
        cdef aeron_counter_constants_t constants
        counter_constants(<aeron_counter_t *>self.resource, &constants)
        self.counter_id = constants.counter_id
        self.registration_id = constants.registration_id
        self.address = counter_addr(<aeron_counter_t *>self.resource)
        return 0

    cdef void unbind(self) noexcept:
        self.address = NULL

    @property
    def value(self):
        if self.address == NULL or not self.usable():
            self.refuse()
        return fp_counter_get(self.address)

    def set(self, int64_t value):
        if self.address == NULL or not self.usable():
            self.refuse()
        fp_counter_set(self.address, value)

    def increment(self, int64_t by=1):
        """Adds and returns the value before."""
        if self.address == NULL or not self.usable():
            self.refuse()
        return fp_counter_add(self.address, by)

    def describe(self):
        return f"Counter {self.label!r}"


cdef extern from *:
    """
    static inline int64_t fp_counter_get(int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline void fp_counter_set(int64_t *at, int64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    static inline int64_t fp_counter_add(int64_t *at, int64_t by)
    {
        return __atomic_fetch_add(at, by, __ATOMIC_ACQ_REL);
    }
    """
    int64_t fp_counter_get(int64_t *at)
    void fp_counter_set(int64_t *at, int64_t value)
    int64_t fp_counter_add(int64_t *at, int64_t by)
