# Heartbeats: messages that leave at their period without the interpreter.


@cython.final
@cython.no_gc_clear
cdef class Heartbeat:
    """Sends a message every `period_ns`, from a thread that never needs the interpreter.

    A program that computes or sleeps stays alive to others. The first message leaves at once; each has the time of
    CLOCK_MONOTONIC at `stamp_offset`, if that is given. An offer that Aeron does not take is repeated until the next
    period begins, never waited for. After the loss of the media driver it goes on as soon as `Client.reconnect` has
    given the publication its new life. It ends with `close`, or when it is dropped, or with its publication. With
    `give_up_ns` it also ends, for good, once so long has passed without a message sent: whoever it speaks for counts as
    dead by then, and a process that was stopped and wakes up must not claim otherwise.
    """

    def __cinit__(
        self,
        Publication publication not None,
        bytes message not None,
        int64_t period_ns,
        stamp_offset=None,
        int64_t give_up_ns=0,
    ):
        cdef Client client = publication.client
        cdef int error
        client.check_owner()
        publication.check_open()
        if period_ns < 1:
            raise ValueError("a period has at least 1 ns")
        self.publication = publication
        self.period_ns = period_ns
        self.stamp_offset = stamp_offset
        self.check_message(message)
        if client.heart == NULL:
            client.heart = fp_heart_new()
        if client.heart != NULL:
            self.c = fp_beat_new(
                <const uint8_t *>PyBytes_AS_STRING(message), <size_t>PyBytes_GET_SIZE(message), period_ns,
                -1 if stamp_offset is None else stamp_offset, give_up_ns)
        if self.c == NULL:
            raise MemoryError
        error = fp_heart_start(client.heart)
        if error:
            raise TransportError(f"cannot start the thread of heartbeats: {strerror(error).decode()}")
        fp_heart_add(
            client.heart, self.c, <void *>publication, <aeron_publication_t *>publication.resource, client.report)

    def __dealloc__(self):
        if self.c != NULL and self.publication.client.forks == fp_forks():
            self.leave()
            fp_beat_free(self.c)

    cdef int check_message(self, bytes message) except -1:
        cdef size_t most = self.publication.constants.max_message_length  # 0 until it was added
        if most and <size_t>len(message) > most:
            raise ValueError(f"a message has at most {most} bytes here, not {len(message)}")
        if self.stamp_offset is not None and not 0 <= self.stamp_offset <= len(message) - 8:
            raise ValueError(f"no room for a time at offset {self.stamp_offset} of {len(message)} bytes")
        return 0

    cdef void leave(self) noexcept:
        if not self.closed:
            self.closed = True
            fp_heart_remove(self.publication.client.heart, self.c)

    def update(self, bytes message not None):
        """Replaces the message from the next one on."""
        self.publication.client.check_owner()
        if self.closed:
            raise TransportClosed("the heartbeat was closed")
        self.check_message(message)
        if fp_beat_update(
                self.publication.client.heart, self.c,
                <const uint8_t *>PyBytes_AS_STRING(message), <size_t>PyBytes_GET_SIZE(message)):
            raise MemoryError

    def close(self):
        """Ends it: when this returns, nothing is sent any more. May be called twice, and after the client."""
        if self.publication.client.forks == fp_forks():
            self.leave()

    cdef int64_t last_sent(self) noexcept:
        return fp_beat_last_sent_ns(self.c)

    @property
    def last_sent_ns(self):
        """CLOCK_MONOTONIC just before the last offer that Aeron took; 0 before the first."""
        return self.last_sent()

    @property
    def gave_up(self):
        """Whether it ended because it was kept from sending for `give_up_ns`."""
        return fp_beat_gave_up(self.c)

    @property
    def sent(self):
        """Messages that Aeron took."""
        return fp_beat_sent(self.c)

    @property
    def failed(self):
        """Periods that ended without one."""
        return fp_beat_failed(self.c)

    def statistics(self):
        return {"sent": self.sent, "failed": self.failed, "last_sent_ns": self.last_sent_ns}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
