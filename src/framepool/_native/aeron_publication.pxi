# Publications and claims.

cdef enum:
    ADMIN_RETRIES = 64


@cython.no_gc_clear
cdef class AnyPublication(Child):
    """What the two kinds of publication have in common."""

    def __init__(self, Client client, str channel not None, int32_t stream_id):
        self.channel = channel
        self.stream_id = stream_id
        self.uri = channel.encode()

    cdef int add_c(self, aeron_async_add_publication_t **pending) except -2:
        if self.exclusive:
            return async_add_exclusive_publication(pending, self.client.c, self.uri, self.stream_id)
        return async_add_publication(pending, self.client.c, self.uri, self.stream_id)

    cdef int poll_c(self) noexcept:
        if self.exclusive:
            return async_add_exclusive_publication_poll(
                <aeron_exclusive_publication_t **>&self.resource, self.pending)
        return async_add_publication_poll(<aeron_publication_t **>&self.resource, self.pending)

    cdef void cancel_c(self) noexcept:
        if self.exclusive:
            async_add_exclusive_publication_cancel(self.client.c, self.pending)
        else:
            async_add_publication_cancel(self.client.c, self.pending)

    cdef void close_c(self) noexcept:
        if self.exclusive:
            exclusive_publication_close(<aeron_exclusive_publication_t *>self.resource, NULL, NULL)
        else:
            publication_close(<aeron_publication_t *>self.resource, NULL, NULL)

    cdef int bind(self) except -1:
        memset(&self.ahead, 0, sizeof(self.ahead))
        if self.exclusive:
            exclusive_publication_constants(<aeron_exclusive_publication_t *>self.resource, &self.constants)
        else:
            publication_constants(<aeron_publication_t *>self.resource, &self.constants)
            if self.client.heart != NULL:
                fp_heart_bind(
                    self.client.heart, <void *>self, <aeron_publication_t *>self.resource, self.client.report)
        return 0

    cdef void unbind(self) noexcept:
        """Aborts open claims: one that is never finished would hold back every subscriber. Heartbeats wait."""
        self.await_holder()
        if self.client.heart != NULL:
            fp_heart_bind(self.client.heart, <void *>self, NULL, NULL)
        while self.claims != NULL:
            (<Claim>self.claims).finish(False)

    def offer(self, message):
        """Sends one message without waiting.

        Returns the position behind it, or a negative `Outcome`: the message was not sent. ADMIN_ACTION, which
        happens once per term, is retried inside. Raises only where the publication cannot be used at all.
        """
        cdef Py_buffer view
        cdef int64_t position
        if not self.usable():
            self.refuse()
        if PyBytes_CheckExact(message):
            position = self.send(<const uint8_t *>PyBytes_AS_STRING(message), <size_t>PyBytes_GET_SIZE(message))
        else:
            PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
            position = self.send(<const uint8_t *>view.buf, <size_t>view.len)
            PyBuffer_Release(&view)
        if position >= 0:
            self.sent += 1
        else:
            self.note(position, "message", self.constants.max_message_length)
        return position

    cdef int64_t send(self, const uint8_t *data, size_t length) noexcept:
        cdef int64_t position = ADMIN_ACTION
        cdef int tries = ADMIN_RETRIES
        while position == ADMIN_ACTION and tries:
            tries -= 1
            if self.exclusive:
                position = exclusive_publication_offer(
                    <aeron_exclusive_publication_t *>self.resource, data, length, NULL, NULL)
            else:
                position = publication_offer(<aeron_publication_t *>self.resource, data, length, NULL, NULL)
        return position

    cdef int check_sender(self) except -1:
        """Raises where the caller is wrong to send at all; a lost media driver is nobody's fault."""
        self.client.check_owner()
        return self.check_open()

    cdef int64_t tell(self, const uint8_t *data, size_t length) noexcept:
        """`offer` for those who go on whatever becomes of the message: CLOSED where the media driver is lost.

        The lines and pages of the log that are written to next are fetched now that nobody waits."""
        cdef aeron_buffer_claim_t place
        cdef int64_t position = self.reserve(length, &place) if self.usable() else CLOSED
        if position >= 0:
            memcpy(place.data, data, length)
            buffer_claim_commit(&place)
            fp_expect_writes(place.data + length, DATA_HEADER_BYTES + length)
            fp_ahead_sent(&self.ahead, place.data, length, position, self.constants.term_buffer_length)
            self.sent += 1
        elif position > ERROR:
            self.outcomes[-position] += 1
        else:
            err_clear()
        return position

    cdef int64_t reserve(self, size_t length, aeron_buffer_claim_t *claim) noexcept nogil:
        """`try_claim` for whoever holds the publication: the place itself, in the log, or a negative `Outcome`, which
        is not counted."""
        cdef int64_t position = ADMIN_ACTION
        cdef int tries = ADMIN_RETRIES
        while position == ADMIN_ACTION and tries:
            tries -= 1
            if self.exclusive:
                position = exclusive_publication_try_claim(
                    <aeron_exclusive_publication_t *>self.resource, length, claim)
            else:
                position = publication_try_claim(<aeron_publication_t *>self.resource, length, claim)
        if position == ERROR:
            err_clear()
        return position

    cdef void finish(self, aeron_buffer_claim_t *claim, bint commit) noexcept nogil:
        """Sends what stands in a reserved place, or gives the place up; not counted either."""
        if commit:
            buffer_claim_commit(claim)
        else:
            buffer_claim_abort(claim)

    cdef int note(self, int64_t outcome, str what, size_t most) except -1:
        """Counts what was not sent. CLOSED under our feet means that the client is lost; ERROR is the caller's."""
        if outcome > ERROR:
            self.outcomes[-outcome] += 1
        if outcome == CLOSED:
            self.client.check()
        elif outcome == ERROR:
            code, text = take_error()
            raise ValueError(f"{text} (a {what} has at most {most} bytes here)")
        return 0

    def try_claim(self, Py_ssize_t length):
        """Reserves `length` bytes for a message to be filled in and committed, or a negative `Outcome`.

        While a claim is open, subscribers see nothing behind it.
        """
        cdef Claim claim
        cdef aeron_buffer_claim_t reserved
        cdef int64_t position = ADMIN_ACTION
        cdef int tries = ADMIN_RETRIES
        if not self.usable():
            self.refuse()
        if length < 0 or <size_t>length > self.constants.max_payload_length:
            raise ValueError(f"a claim has at most {self.constants.max_payload_length} bytes here")
        claim = Claim.__new__(Claim)
        claim.allocate(length)
        while position == ADMIN_ACTION and tries:
            tries -= 1
            if self.exclusive:
                position = exclusive_publication_try_claim(
                    <aeron_exclusive_publication_t *>self.resource, <size_t>length, &reserved)
            else:
                position = publication_try_claim(<aeron_publication_t *>self.resource, <size_t>length, &reserved)
        if position < 0:
            self.note(position, "claim", self.constants.max_payload_length)
            return position
        claim.join(self, &reserved, position)
        return claim

    @property
    def is_connected(self):
        """Whether a subscriber is there."""
        if not self.usable():
            self.refuse()
        if self.exclusive:
            return exclusive_publication_is_connected(<aeron_exclusive_publication_t *>self.resource)
        return publication_is_connected(<aeron_publication_t *>self.resource)

    @property
    def position(self):
        if not self.usable():
            self.refuse()
        if self.exclusive:
            return exclusive_publication_position(<aeron_exclusive_publication_t *>self.resource)
        return publication_position(<aeron_publication_t *>self.resource)

    @property
    def position_limit(self):
        """Up to where subscribers let us send."""
        if not self.usable():
            self.refuse()
        if self.exclusive:
            return exclusive_publication_position_limit(<aeron_exclusive_publication_t *>self.resource)
        return publication_position_limit(<aeron_publication_t *>self.resource)

    @property
    def session_id(self):
        return self.constants.session_id

    @property
    def registration_id(self):
        return self.constants.registration_id

    @property
    def term_length(self):
        return self.constants.term_buffer_length

    @property
    def max_message_length(self):
        """The longest message that `offer` takes: an eighth of the term, 16 MiB at most."""
        return self.constants.max_message_length

    @property
    def max_payload_length(self):
        """The longest claim: one fragment."""
        return self.constants.max_payload_length

    def statistics(self):
        """Messages sent, and those not sent by `Outcome`, since the beginning."""
        return {
            "sent": self.sent,
            "not_connected": self.outcomes[-NOT_CONNECTED],
            "back_pressured": self.outcomes[-BACK_PRESSURED],
            "admin_action": self.outcomes[-ADMIN_ACTION],
            "closed": self.outcomes[-CLOSED],
            "max_position_exceeded": self.outcomes[-MAX_POSITION_EXCEEDED],
        }


@cython.final
@cython.no_gc_clear
cdef class Publication(AnyPublication):
    """Sends messages; the publications that a process has of one stream share one log."""


@cython.final
@cython.no_gc_clear
cdef class ExclusivePublication(AnyPublication):
    """A publication with a log of its own: faster, and its messages keep their order without a lock."""

    def __cinit__(self, *args, **kwargs):
        self.exclusive = True


@cython.final
@cython.no_gc_clear
cdef class Claim:
    """A reserved place in the log, filled through the buffer protocol and finished by `commit` or `abort`.

    The bytes are kept aside until the commit, so that a view which outlives the publication is only stale, never a
    crash. Dropped without a commit, the claim aborts. As a context manager it commits unless the block raises.
    """

    cdef AnyPublication publication
    cdef aeron_buffer_claim_t reserved
    cdef uint8_t *bytes
    cdef Py_ssize_t length
    cdef PyObject *next
    cdef PyObject *previous
    cdef bint open
    cdef readonly int64_t position

    cdef int allocate(self, Py_ssize_t length) except -1:
        self.bytes = <uint8_t *>PyMem_RawCalloc(1, length + 1)
        if self.bytes == NULL:
            raise MemoryError
        self.length = length
        return 0

    cdef void join(self, AnyPublication publication, aeron_buffer_claim_t *reserved, int64_t position) noexcept:
        self.publication = publication
        self.reserved = reserved[0]
        self.position = position
        self.open = True
        self.next = publication.claims
        if self.next != NULL:
            (<Claim>self.next).previous = <PyObject *>self
        publication.claims = <PyObject *>self

    def __dealloc__(self):
        self.finish(False)
        PyMem_RawFree(self.bytes)

    cdef void finish(self, bint commit) noexcept:
        if not self.open:
            return
        self.open = False
        if self.previous != NULL:
            (<Claim>self.previous).next = self.next
        else:
            self.publication.claims = self.next
        if self.next != NULL:
            (<Claim>self.next).previous = self.previous
        self.next = NULL
        self.previous = NULL
        if self.publication.client.forks != fp_forks():
            return
        if commit:
            memcpy(self.reserved.data, self.bytes, self.length)
            buffer_claim_commit(&self.reserved)
            self.publication.sent += 1
        else:
            buffer_claim_abort(&self.reserved)

    def commit(self):
        """Sends the message and returns the position behind it."""
        if self.publication is None or not self.publication.usable():
            self.publication.refuse()
        if not self.open:
            raise TransportClosed("the claim was finished already")
        self.finish(True)
        return self.position

    def abort(self):
        """Gives the place up; subscribers pass over it. Does nothing after a commit."""
        self.finish(False)

    def __len__(self):
        return self.length

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.bytes, self.length, 0, flags)

    def __enter__(self):
        return memoryview(self)

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.commit()
        else:
            self.abort()
