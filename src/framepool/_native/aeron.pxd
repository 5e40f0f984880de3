"""What other compiled modules may use of a client's objects without passing through Python.

The table of functions and the count of forks live in the compiled `aeron` alone: others go through these methods.
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from framepool._native.aeron_api cimport (
    aeron_async_add_publication_t,
    aeron_buffer_claim_t,
    aeron_context_t,
    aeron_publication_constants_t,
    aeron_t,
    fp_ahead_t,
    fp_beat_t,
    fp_deliver_t,
    fp_drain_t,
    fp_ear_t,
    fp_heart_t,
    fp_receiver_t,
    fp_report_t,
    fp_retract_t,
    fp_turn_t,
    pthread_mutex_t,
)

cdef enum:
    # The numbers of `framepool.transport.aeron.Outcome`, and ERROR, which becomes an exception.
    NOT_CONNECTED = -1
    BACK_PRESSURED = -2
    ADMIN_ACTION = -3
    CLOSED = -4
    MAX_POSITION_EXCEEDED = -5
    ERROR = -6

cdef struct batch_t:
    PyObject **items
    size_t count
    size_t capacity
    size_t failed

cdef class Client:
    cdef aeron_context_t *context
    cdef aeron_t *c
    cdef fp_report_t *report
    cdef fp_heart_t *heart
    cdef unsigned int forks
    cdef PyObject *first
    cdef bint opening
    cdef readonly bint closed
    cdef public bint rejoining
    cdef readonly str directory
    cdef str lost_text
    cdef void free(self) noexcept
    cdef bint alive(self) noexcept
    cdef int check_owner(self) except -1
    cdef int check(self) except -1
    cdef str describe_loss(self)

cdef class Child:
    cdef readonly Client client
    cdef aeron_async_add_publication_t *pending
    cdef void *resource
    cdef PyObject *next
    cdef PyObject *previous
    cdef readonly bint closed
    cdef readonly str channel
    cdef readonly int32_t stream_id
    cdef bytes uri
    cdef uint64_t errors_before  # that Aeron had reported when this was asked for
    cdef pthread_mutex_t guard  # held by whoever uses `resource` without the interpreter's lock
    cdef int add_c(self, aeron_async_add_publication_t **pending) except -2
    cdef int poll_c(self) noexcept
    cdef void cancel_c(self) noexcept
    cdef void close_c(self) noexcept
    cdef int bind(self) except -1
    cdef void unbind(self) noexcept
    cdef void release(self) noexcept
    cdef int check_open(self) except -1
    cdef bint usable(self) noexcept
    cdef int refuse(self) except -1
    cdef int hold(self) except -1
    cdef void let_go(self) noexcept nogil
    cdef void await_holder(self) noexcept

cdef class AnyPublication(Child):
    cdef bint exclusive
    cdef aeron_publication_constants_t constants
    cdef PyObject *claims
    cdef uint64_t sent
    cdef uint64_t outcomes[6]  # by -Outcome
    cdef fp_ahead_t ahead
    cdef int64_t send(self, const uint8_t *data, size_t length) noexcept
    cdef int note(self, int64_t outcome, str what, size_t most) except -1
    cdef int check_sender(self) except -1
    cdef int64_t tell(self, const uint8_t *data, size_t length) noexcept
    cdef int64_t reserve(self, size_t length, aeron_buffer_claim_t *claim) noexcept nogil
    cdef void finish(self, aeron_buffer_claim_t *claim, bint commit) noexcept nogil

cdef class Publication(AnyPublication):
    pass

cdef class Heartbeat:
    cdef fp_beat_t *c
    cdef readonly Publication publication
    cdef readonly bint closed
    cdef readonly int64_t period_ns
    cdef readonly object stamp_offset
    cdef int check_message(self, bytes message) except -1
    cdef void leave(self) noexcept
    cdef int64_t last_sent(self) noexcept

cdef class Subscription(Child):
    cdef fp_receiver_t receiver
    cdef fp_ear_t ear
    cdef batch_t batch
    cdef list left
    cdef Py_ssize_t left_at
    cdef fp_drain_t *drained
    cdef PyObject *drainer  # the Drain that owns `drained`; it holds us, not we it
    cdef int fetch(self, Py_ssize_t limit) except -1
    cdef list take_batch(self)
    cdef list take_left(self, Py_ssize_t limit)
    cdef int start_drain(self) except -1
    cdef bint diverted
    cdef int divert(self, fp_deliver_t deliver, fp_retract_t retract, void *clientd, size_t most) except -1
    cdef void restore(self) noexcept
    cdef bint is_polled(self) noexcept
    cdef void point_ear(self) noexcept
    cdef int poll_diverted(self, size_t limit) except -1

cdef class Drain:
    cdef fp_drain_t *c
    cdef readonly Subscription subscription
    cdef readonly bint closed
    cdef readonly uint64_t joins
    cpdef close(self)
    cdef int check(self) except -1
    cdef uint64_t queued(self) noexcept
    cdef uint64_t fill(self) noexcept
    cdef Py_ssize_t take_records(self, uint8_t *records, size_t most, Py_ssize_t limit) except -1

@cython.final
cdef class Ears:
    cdef Client client
    cdef list heard
    cdef object take
    cdef object lock
    cdef fp_turn_t turn
    cdef int64_t least_ns
    cdef int64_t most_ns
    cdef int64_t nap_ns
    cdef list everybody(self)
    cdef int take_turn(self) except -1
