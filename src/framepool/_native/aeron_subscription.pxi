# Subscriptions and drains.

from time import monotonic

Image = namedtuple(
    "Image",
    "session_id correlation_id source_identity join_position position term_length mtu_length initial_term_id "
    "end_of_stream closed",
)

cdef extern from "Python.h":
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t length)
    void PyErr_Clear()


cdef void collect(void *clientd, const uint8_t *buffer, size_t length) noexcept:
    """Called within a C poll: makes bytes, which runs no Python code, and nothing else."""
    cdef batch_t *batch = <batch_t *>clientd
    cdef PyObject *item = NULL
    if batch.count < batch.capacity:
        item = new_bytes(<const char *>buffer, <Py_ssize_t>length)
    if item == NULL:
        PyErr_Clear()
        batch.failed += 1
        return
    batch.items[batch.count] = item
    batch.count += 1


cdef void uncollect(void *clientd) noexcept:
    """Takes the last one back: it was overwritten while it was copied."""
    cdef batch_t *batch = <batch_t *>clientd
    if batch.count:
        batch.count -= 1
        Py_XDECREF(batch.items[batch.count])


@cython.final
@cython.no_gc_clear
cdef class Subscription(Child):
    """Receives messages whole, whatever number of fragments they came in."""

    def __cinit__(self, *args, **kwargs):
        pthread_mutex_init(&self.ear.mutex, NULL)
        self.restore()
        self.receiver.filter.schema_id = -1
        self.receiver.filter.template_id = -1

    def __init__(self, Client client, str channel not None, int32_t stream_id):
        self.channel = channel
        self.stream_id = stream_id
        self.receiver.stream_id = stream_id
        self.uri = channel.encode()

    def __dealloc__(self):
        fp_receiver_clear(&self.receiver)
        PyMem_RawFree(self.batch.items)

    cdef int add_c(self, aeron_async_add_publication_t **pending) except -2:
        return async_add_subscription(pending, self.client.c, self.uri, self.stream_id, NULL, NULL, NULL, NULL)

    cdef int poll_c(self) noexcept:
        return async_add_subscription_poll(<aeron_subscription_t **>&self.resource, self.pending)

    cdef void cancel_c(self) noexcept:
        async_add_subscription_cancel(self.client.c, self.pending)

    cdef void close_c(self) noexcept:
        subscription_close(<aeron_subscription_t *>self.resource, NULL, NULL)

    cdef int bind(self) except -1:
        if self.drained != NULL:
            self.start_drain()
        self.point_ear()
        return 0

    cdef bint is_polled(self) noexcept:
        """Whether it is emptied by `poll`, and by nobody else."""
        return self.drained == NULL and not self.diverted

    cdef void point_ear(self) noexcept:
        """Lets ears look where nobody polls but under their lock."""
        cdef bint open = self.resource != NULL and self.is_polled()
        fp_ear_point(
            &self.ear,
            <aeron_subscription_t *>self.resource if open else NULL,
            self.client.report if open else NULL,
        )

    cdef void unbind(self) noexcept:
        fp_ear_point(&self.ear, NULL, NULL)
        self.await_holder()
        if self.drained != NULL:
            fp_drain_stop(self.drained)
        fp_receiver_clear(&self.receiver)

    def set_filter(
        self, *, schema_id=None, template_id=None, Py_ssize_t offset=0, bint after_block=False, bytes pattern=b""
    ):
        """Lets pass only messages whose SBE header names the schema and the template and which have `pattern` at
        `offset`; others are counted and never become Python objects. With `after_block` the offset counts from where
        the message's own blockLength says that its block ends: of the first data field, also in longer blocks."""
        cdef fp_filter_t *filter = &self.receiver.filter
        self.client.check_owner()
        if len(pattern) > FP_PATTERN_MAX or offset < 0:
            raise ValueError(f"a pattern has at most {FP_PATTERN_MAX} bytes and stands at an offset from 0")
        for value in (schema_id, template_id):
            if value is not None and not 0 <= value <= 0xFFFF:
                raise ValueError(f"{value} is not an unsigned 16-bit number")
        running = self.drained != NULL and self.drained.running
        if running:
            fp_drain_stop(self.drained)
        filter.schema_id = -1 if schema_id is None else schema_id
        filter.template_id = -1 if template_id is None else template_id
        filter.offset = offset
        filter.after_block = after_block
        filter.length = len(pattern)
        memcpy(filter.pattern, PyBytes_AS_STRING(pattern), len(pattern))
        if self.drained != NULL:
            self.drained.receiver.filter = self.receiver.filter
        if running:
            self.start_drain()

    cdef int fetch(self, Py_ssize_t limit) except -1:
        """One C poll of at most `limit` messages into the batch."""
        cdef PyObject **grown
        if not self.usable():
            self.refuse()
        if not self.is_polled():
            raise TransportError(f"{self.describe()} is emptied by a drain or a receiver of chunks: take from that")
        if limit < 1:
            raise ValueError("the limit is at least 1")
        if <size_t>limit > self.batch.capacity:
            grown = <PyObject **>PyMem_RawRealloc(self.batch.items, limit * sizeof(PyObject *))
            if grown == NULL:
                raise MemoryError
            self.batch.items = grown
            self.batch.capacity = limit
        pthread_mutex_lock(&self.ear.mutex)
        fp_receiver_poll(&self.receiver, <aeron_subscription_t *>self.resource, limit)
        pthread_mutex_unlock(&self.ear.mutex)
        if self.batch.failed:
            lost = self.batch.failed
            self.batch.failed = 0
            self.left = self.take_batch()
            self.left_at = 0
            raise MemoryError(f"no memory for {lost} messages; the others come with the next poll")
        return 0

    cdef list take_batch(self):
        cdef size_t count = self.batch.count
        cdef size_t i
        cdef list result = PyList_New(<Py_ssize_t>count)
        for i in range(count):
            fp_set_item(result, <Py_ssize_t>i, self.batch.items[i])
        self.batch.count = 0
        return result

    cdef list take_left(self, Py_ssize_t limit):
        cdef list result = self.left[self.left_at:self.left_at + limit]
        self.left_at += len(result)
        if self.left_at >= len(self.left):
            self.left = None
        return result

    def poll(self, Py_ssize_t limit=64):
        """Up to `limit` messages, oldest first; an empty list when there are none."""
        if self.left is not None and not self.closed:
            return self.take_left(limit)
        self.fetch(limit)
        return self.take_batch()

    def poll_handler(self, handler, Py_ssize_t limit=64):
        """Calls `handler(message)` for up to `limit` messages and returns how many.

        The C poll is over when the first call is made. Where the handler raises, the exception goes to the caller
        and the next poll continues with the message after; the handler may poll, close and do anything else.
        """
        cdef Py_ssize_t done = 0
        if self.left is None or self.closed:
            self.fetch(limit)
            if self.batch.count == 0:
                return 0
            self.left = self.take_batch()
            self.left_at = 0
        while done < limit and self.left is not None and not self.closed:
            message = self.left[self.left_at]
            self.left_at += 1
            if self.left_at >= len(self.left):
                self.left = None
            done += 1
            handler(message)
        return done

    cdef int divert(self, fp_deliver_t deliver, fp_retract_t retract, void *clientd, size_t most) except -1:
        """Has messages delivered by `poll_diverted` alone, where they lie in the log, to functions that need no
        interpreter; those in fragments up to `most` bytes. `restore` ends it."""
        if not self.is_polled():
            raise TransportError(f"{self.describe()} is emptied by somebody else already")
        self.receiver.deliver = deliver
        self.receiver.retract = retract
        self.receiver.clientd = clientd
        self.receiver.most = most
        self.diverted = True
        self.point_ear()
        return 0

    cdef void restore(self) noexcept:
        self.await_holder()
        self.receiver.deliver = <fp_deliver_t><void *>collect  # called by our own polls, with the lock held
        self.receiver.retract = <fp_retract_t><void *>uncollect
        self.receiver.clientd = &self.batch
        self.receiver.most = 0
        self.diverted = False
        self.point_ear()

    cdef int poll_diverted(self, size_t limit) except -1:
        """One C poll of at most `limit` messages without the interpreter's lock; the fragments read."""
        cdef int read
        self.hold()
        with nogil:
            read = fp_receiver_poll(&self.receiver, <aeron_subscription_t *>self.resource, limit)
            self.let_go()
        return read

    def drain(self, *, Py_ssize_t capacity=1024, Py_ssize_t max_message=256, int64_t idle_ns=200_000):
        """Has this subscription emptied into a queue of the newest `capacity` messages, by whoever takes from it or
        by a thread that stands by.

        `idle_ns` is how long who waits sleeps at most while nothing comes: a lower latency is paid in CPU.
        """
        cdef Drain drain
        if not self.usable():
            self.refuse()
        if not self.is_polled():
            raise TransportError(f"{self.describe()} has a drain already, or a receiver of chunks")
        if capacity < 1 or max_message < 1 or idle_ns < 1:
            raise ValueError("capacity, max_message and idle_ns are at least 1")
        drain = Drain.__new__(Drain)
        drain.c = fp_drain_new(capacity, max_message, idle_ns)
        if drain.c == NULL:
            raise MemoryError
        drain.subscription = self
        drain.c.receiver.filter = self.receiver.filter
        drain.c.receiver.stream_id = self.stream_id
        self.drained = drain.c
        self.drainer = <PyObject *>drain
        self.point_ear()
        self.start_drain()
        return drain

    cdef int start_drain(self) except -1:
        cdef int error
        (<Drain>self.drainer).joins += 1
        error = fp_drain_start(self.drained, <aeron_subscription_t *>self.resource, self.client.report)
        if error:
            raise TransportError(f"cannot start the drain's thread: {strerror(error).decode()}")
        return 0

    @property
    def image_count(self):
        """How many publications it receives from."""
        if not self.usable():
            self.refuse()
        if self.drained == NULL or not self.drained.running:
            return subscription_image_count(<aeron_subscription_t *>self.resource)
        fp_drain_lock(self.drained)
        count = self.drained.image_count
        fp_drain_unlock(self.drained)
        return count

    @property
    def is_connected(self):
        return self.image_count > 0

    @property
    def troubled(self):
        """Whether Aeron has reported an error since this was added. It may have been unable to map the log of a
        publication, for want of memory or descriptors; it does not try again, and nothing of that publication is
        heard. `renew` has it try."""
        return self.client.alive() and fp_report_count(self.client.report) != self.errors_before

    def images(self):
        """What it receives from, one `Image` each; the first 128."""
        cdef fp_images_t *found
        cdef fp_drain_t *drained = self.drained
        cdef int i
        if not self.usable():
            self.refuse()
        found = <fp_images_t *>PyMem_RawCalloc(1, sizeof(fp_images_t))
        if found == NULL:
            raise MemoryError
        try:
            if drained == NULL or not drained.running:
                fp_images_read(found, <aeron_subscription_t *>self.resource)
            else:
                fp_drain_read_images(drained, found)
            return [
                Image(
                    found.images[i].session_id,
                    found.images[i].correlation_id,
                    found.images[i].source.decode(errors="replace"),
                    found.images[i].join_position,
                    found.images[i].position,
                    found.images[i].term_length,
                    found.images[i].mtu_length,
                    found.images[i].initial_term_id,
                    bool(found.images[i].end_of_stream),
                    bool(found.images[i].closed),
                )
                for i in range(found.count)
            ]
        finally:
            PyMem_RawFree(found)

    def statistics(self):
        """Since the beginning: messages delivered and filtered out, fragments that made no message. Now: messages
        that a handler left by raising, and sessions for which a buffer for fragments is kept."""
        cdef fp_receiver_t *receiver = &self.receiver if self.drained == NULL else &self.drained.receiver
        return {
            "delivered": receiver.delivered,
            "filtered": receiver.filtered,
            "broken": receiver.broken,
            "waiting": 0 if self.left is None else len(self.left) - self.left_at,
            "assembling": receiver.partial_count,
        }


@cython.final
@cython.no_gc_clear
cdef class Drain:
    """The queue in front of a subscription, filled by whoever takes from it, else by a thread that never needs the
    interpreter.

    A program that computes or sleeps holds up no publisher: what it does not take in time is overwritten by what is
    newer, and counted.
    """

    def __dealloc__(self):
        if self.subscription is not None and self.subscription.client.forks == fp_forks():
            self.close()
            fp_drain_free(self.c)

    cpdef close(self):
        """Ends the drain; the subscription can be polled again. What was not taken is dropped."""
        if not self.closed:
            self.closed = True
            if self.subscription.client.forks == fp_forks():
                self.subscription.drained = NULL
                self.subscription.drainer = NULL
                fp_drain_stop(self.c)
                self.subscription.point_ear()

    cdef int check(self) except -1:
        """Raises where nothing can come any more."""
        self.subscription.client.check_owner()
        if self.closed:
            raise TransportClosed("the drain was closed")
        self.subscription.check_open()
        self.subscription.client.check()
        return 0

    cdef uint64_t queued(self) noexcept:
        """How many messages can be taken."""
        return fp_drain_queued(self.c)

    cdef uint64_t fill(self) noexcept:
        """How many messages can be taken; where there are none, looks for some first."""
        if fp_drain_queued(self.c) == 0:
            fp_drain_turn(self.c)
        return fp_drain_queued(self.c)

    def take(self, Py_ssize_t limit=256):
        """Up to `limit` messages, oldest first; what was queued before a loss is still handed over."""
        cdef uint64_t count
        cdef uint64_t i
        cdef uint64_t length
        cdef uint8_t *slot
        cdef list result
        cdef PyObject *item
        if self.closed or self.subscription.client.forks != fp_forks():
            self.check()
        count = self.fill()
        if count == 0:
            self.check()
            return []
        if limit < 1:
            raise ValueError("the limit is at least 1")
        count = min(count, <uint64_t>limit)
        result = [None] * <Py_ssize_t>count
        # With the interpreter's lock held nobody else takes, so at least `count` messages are still there.
        fp_drain_lock(self.c)
        for i in range(count):
            slot = fp_drain_slot(self.c, self.c.tail)
            memcpy(&length, slot, sizeof(length))
            item = new_bytes(<const char *>(slot + sizeof(length)), <Py_ssize_t>length)
            if item == NULL:
                break
            fp_swap_item(result, <Py_ssize_t>i, item)
            fp_drain_forward(&self.c.tail, 1)
        if fp_drain_queued(self.c) == 0:
            fp_drain_quiet(self.c)
        fp_drain_unlock(self.c)
        if item == NULL:
            PyErr_Clear()
            raise MemoryError
        return result

    cdef Py_ssize_t take_records(self, uint8_t *records, size_t most, Py_ssize_t limit) except -1:
        """`take` without an object for each message: up to `limit` records of a length, in 8 bytes, and the first
        `most` bytes of the message. Returns how many; a loss is told by `check`, once nothing comes any more."""
        if self.closed or self.subscription.client.forks != fp_forks():
            self.check()
        return <Py_ssize_t>fp_drain_take(self.c, records, most, <size_t>limit)

    def wait(self, timeout=None):
        """Waits without the interpreter's lock until there is something to take: True, or False after `timeout`
        seconds. Raises MediaDriverLost when nothing can come any more; a signal is answered within 50 ms."""
        cdef int64_t slice_ns
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self.closed or self.subscription.client.forks != fp_forks():
                self.check()
            if self.waiting:
                return True
            self.check()
            left = 0.05 if deadline is None else min(0.05, deadline - monotonic())
            if left <= 0:
                return False
            slice_ns = <int64_t>(left * 1e9)
            with nogil:
                if fp_drain_wait(self.c, slice_ns) and self.c.ended:
                    fp_sleep_ns(1_000_000)  # between two lives: the subscription is being added again
            PyErr_CheckSignals()

    @property
    def waiting(self):
        """How many messages can be taken."""
        return fp_drain_queued(self.c)

    def fileno(self):
        """An eventfd that is readable while there is something to take or the connection has ended: for `select`
        and asyncio. It belongs to the drain: do not read, write or close it."""
        self.check()
        cdef int fd = fp_drain_event_fd(self.c)
        if fd < 0:
            raise OSError(errno, "no eventfd, or no thread to write it")
        return fd

    def statistics(self):
        """`received` = taken + `overwritten` + `waiting`; `oversized` messages were too long for a slot."""
        fp_drain_lock(self.c)
        result = {
            "received": self.c.head + self.c.straight.total,
            "overwritten": self.c.overwritten,
            "oversized": self.c.oversized,
            "waiting": fp_drain_queued(self.c),
            "filtered": self.c.receiver.filtered,
            "broken": self.c.receiver.broken,
        }
        fp_drain_unlock(self.c)
        return result

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


@cython.final
cdef class Ears:
    """Waits for what some subscriptions hear, without the interpreter's lock and without taking anything: looks each
    `least_ns` at first, then less and less often until it is each `most_ns`, and quickly again after `rouse`. Given a
    client, it hears all subscriptions of that one which are polled.

    With `offer`, looks and turns are left to threads that have the interpreter anyway, while they call `serve` often.
    """

    def __cinit__(self, Client client=None, *, int64_t least_ns=1_000_000, int64_t most_ns=4_000_000):
        if not 0 < least_ns <= most_ns:
            raise ValueError("least_ns is above 0 and at most most_ns")
        self.client = client
        self.heard = []
        self.least_ns = self.nap_ns = least_ns
        self.most_ns = most_ns
        self.turn.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.turn.event_fd < 0:
            raise OSError(errno, "eventfd")
        fp_turn_init(&self.turn)

    def __dealloc__(self):
        if self.turn.event_fd >= 0:
            close_fd(self.turn.event_fd)

    def add(self, Subscription subscription not None):
        """Waits for this one too, from the next `wait` on."""
        self.heard.append(subscription)

    def offer(self, take not None, lock not None):
        """Has whoever calls `serve` often take turns, from the next `wait` on, unless somebody has the lock: `take()` returns
        in how many ns the next one is due; whether something was done, so that more may come soon; and whether
        something is left to the thread that waits."""
        self.take = take
        self.lock = lock
        self.turn.wanted = True

    def serve(self):
        """Takes a turn, if there is one; to be called again and again, by who has the interpreter anyway."""
        if fp_turn_attend(&self.turn):
            self.take_turn()

    @property
    def attended(self):
        """Whether threads call `serve` so often that they do the looking too, and the one that waits sleeps on."""
        return fp_turn_is_watched(&self.turn)

    cdef int take_turn(self) except -1:
        """The turn that there may be, as `fp_turn_attend` says."""
        cdef int64_t rest_ns = 0
        cdef bint busy = False
        cdef bint undone = True  # unless it says otherwise: also if it raises
        cdef bint locked = False
        if not fp_turn_take(&self.turn):
            return 0
        try:
            locked = self.lock.acquire(False)  # here, where no signal's handler comes in between
            if locked:
                rest_ns, busy, undone = self.take()
        finally:
            if locked:
                self.lock.release()
            fp_turn_done(&self.turn, rest_ns, busy, undone)
        return 0

    cdef list everybody(self):
        cdef list found = list(self.heard)
        if self.client is not None:
            for child in self.client.children():
                if isinstance(child, Subscription) and (<Subscription>child).is_polled():
                    found.append(child)
        return found

    def rouse(self):
        """Something goes on: looks often for a while."""
        self.nap_ns = self.least_ns

    def hurry(self, int64_t rest_ns):
        """Ends a `wait` of another thread in so long, or after the nap that it is at, if it would not end earlier."""
        fp_turn_hurry(&self.turn, rest_ns)

    def nudge(self):
        """Ends the `wait` of another thread, or the next one."""
        fp_turn_nudge(&self.turn)

    def wait(self, int64_t timeout_ns):
        """True once there is something to poll, a subscription is not there at the moment, or it was nudged; False
        when `timeout_ns` are over, or as long as who took a turn said. At least one nap, unless it is nudged."""
        cdef list heard = self.everybody()  # they live while they are looked at
        cdef size_t count = len(heard)
        cdef size_t i
        cdef bint found
        cdef fp_ear_t **ears = <fp_ear_t **>PyMem_RawCalloc(count + 1, sizeof(fp_ear_t *))
        if ears == NULL:
            raise MemoryError
        for i in range(count):
            ears[i] = &(<Subscription>heard[i]).ear
        with nogil:
            found = fp_ears_wait(ears, count, &self.turn, timeout_ns, &self.nap_ns, self.least_ns, self.most_ns)
        PyMem_RawFree(ears)
        return found


cdef extern from *:
    """
    static inline void fp_set_item(PyObject *list, Py_ssize_t i, PyObject *item) { PyList_SET_ITEM(list, i, item); }
    static inline void fp_swap_item(PyObject *list, Py_ssize_t i, PyObject *item)
    {
        Py_DECREF(PyList_GET_ITEM(list, i)); /* None, or it was never set */
        PyList_SET_ITEM(list, i, item);
    }
    """
    void fp_set_item(list target, Py_ssize_t i, PyObject *item)
    void fp_swap_item(list target, Py_ssize_t i, PyObject *item)
