# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The way of a frame in C: slot and descriptor in one call on either side (Wire 8.3, 10.2.1, 15.18).

`FrameWriter` claims, copies, commits and tells; `FrameReader` hears, sorts, checks and hands over. Neither waits. The
slots are those of `seqlock`, the descriptors go through the publication and the drain of `aeron`; what is here is the
descriptor's codec and the account of frames. The readable twin of the codec is `framepool.wire`; a test compares the
reader with a plain one in Python on hostile descriptors and slots.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer

cimport cython
cimport numpy as cnp

import numpy as np

from framepool._native.aeron cimport NOT_CONNECTED, AnyPublication, Drain, Ears, Heartbeat
from framepool._native.aeron_api cimport fp_coming_t, fp_turn_attend
from framepool._native.seqlock cimport (
    ACCEPTED,
    EXTENT,
    OVERWRITTEN,
    CheckedSlot,
    Claim,
    Layout,
    RingReader,
    RingWriter,
)

from framepool.errors import FrameOverwritten, NoPoolFits, TensorError, TransportError
from framepool.shm.drop import DropReason
from framepool.wire.dtypes import NUMPY_DTYPES

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>

    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "framepool's messages are little-endian only (Wire 15.1)"
    #endif

    static inline int64_t fp_clock_ns(clockid_t clock) {
        struct timespec now;
        clock_gettime(clock, &now);
        return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* An instance without a call of Python's: the type is one of ours or made from one. */
    static inline PyObject *fp_instance(PyTypeObject *type, PyObject *nothing) {
        return type->tp_new(type, nothing, NULL);
    }

    static inline int fp_leading_zeros(uint64_t value) {
        return __builtin_clzll(value);
    }
    """
    ctypedef int clockid_t
    clockid_t CLOCK_MONOTONIC
    clockid_t CLOCK_REALTIME
    int64_t fp_clock_ns(clockid_t clock) noexcept nogil
    int fp_leading_zeros(uint64_t value) noexcept nogil
    object fp_instance(type kind, tuple nothing)

cdef extern from "seqlock.h":
    uint64_t fp_slot_look_again(const void *slot) noexcept nogil

cdef extern from "payload.h":
    void fp_expect_writes(const unsigned char *at, size_t nbytes) noexcept nogil
    void fp_own_lines(unsigned char *at, size_t nbytes) noexcept nogil
    void fp_expect_reads(const unsigned char *at, size_t nbytes) noexcept nogil
    enum fp_way:
        FP_PLAIN
        FP_AHEAD
        FP_PASSING
        FP_STRING
        FP_WAYS
    void fp_copy_payload(unsigned char *to, const unsigned char *source, size_t nbytes, fp_way way) noexcept nogil

cdef extern from "layout.h":
    enum:
        FP_HEADER_SLOT_BYTES
        FP_SLOT_HEADER_PAD_OFFSET
        FP_MESSAGE_HEADER_BYTES
        FP_MESSAGE_HEADER_BLOCK_LENGTH_OFFSET
        FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET
        FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET
        FP_MESSAGE_HEADER_VERSION_OFFSET
        FP_CONTROL_SCHEMA_ID
        FP_CONTROL_SCHEMA_VERSION
        FP_FRAME_DESCRIPTOR_TEMPLATE_ID
        FP_FRAME_DESCRIPTOR_BLOCK_LENGTH
        FP_FRAME_DESCRIPTOR_STREAM_ID_OFFSET
        FP_FRAME_DESCRIPTOR_EPOCH_OFFSET
        FP_FRAME_DESCRIPTOR_SEQ_OFFSET
        FP_FRAME_DESCRIPTOR_TIMESTAMP_NS_OFFSET
        FP_FRAME_DESCRIPTOR_META_VERSION_OFFSET
        FP_FRAME_DESCRIPTOR_TRACE_ID_OFFSET
        FP_MAJOR_ORDER_COLUMN
        FP_DTYPE_BIT
    const uint64_t NO_TIMESTAMP "FP_FRAME_DESCRIPTOR_TIMESTAMP_NS_NULL"
    const uint32_t NO_META_VERSION "FP_FRAME_DESCRIPTOR_META_VERSION_NULL"
    const uint64_t NO_TRACE_ID "FP_FRAME_DESCRIPTOR_TRACE_ID_NULL"

cnp.import_array()

cdef enum:
    MESSAGE_BYTES = FP_MESSAGE_HEADER_BYTES + FP_FRAME_DESCRIPTOR_BLOCK_LENGTH
    RECORD_BYTES = 8 + MESSAGE_BYTES
    BATCH = 256
    # From here on the loop of payload.h is no slower than memcpy, and the longer the more ahead of it.
    LOOP_FROM = 2048
    # A copy this long takes whichever of the ways of payload.h is the quickest.
    LONG_FROM = 65536
    # A copy this long releases the interpreter. Below it others wait for a tenth of a millisecond or so; who released it
    # would wait for them, for up to their whole switch interval.
    RELEASE_FROM = 1048576
    # So much of the next payload is fetched ahead; of a longer one the copy itself fetches the rest in time.
    AHEAD_BYTES = 4096
    # And so much of it is taken from readers, who have at least looked what it is.
    OWNED_BYTES = 256

cdef dict NUMPY = NUMPY_DTYPES
cdef tuple NOTHING = ()
cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF

# Results of FrameWriter beside positions (0 or more) and Outcomes (-1 to -5).
cdef enum:
    C_EXPIRED = -101
    C_ABANDONED = -102

EXPIRED = C_EXPIRED
ABANDONED = C_ABANDONED

# The buckets of `framepool.client.histogram`; a test keeps the two equal.
cdef enum:
    BUCKET_BITS = 7
    EXACT_BITS = BUCKET_BITS + 1
    VALUE_BITS = 46
    BUCKETS = ((VALUE_BITS - EXACT_BITS) << BUCKET_BITS) + (1 << EXACT_BITS)

cdef uint8_t HEADER[FP_MESSAGE_HEADER_BYTES]


cdef inline void put16(uint8_t *at, uint16_t value) noexcept nogil:
    memcpy(at, &value, 2)


put16(HEADER + FP_MESSAGE_HEADER_BLOCK_LENGTH_OFFSET, FP_FRAME_DESCRIPTOR_BLOCK_LENGTH)
put16(HEADER + FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET, FP_FRAME_DESCRIPTOR_TEMPLATE_ID)
put16(HEADER + FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET, FP_CONTROL_SCHEMA_ID)
put16(HEADER + FP_MESSAGE_HEADER_VERSION_OFFSET, FP_CONTROL_SCHEMA_VERSION)


cdef class UnderLease:
    """Something that works under a lease and looks at it in C: `deadline_ns`, and after `follow` the last keepalive
    that left."""

    cdef Heartbeat heartbeat
    cdef int64_t lifetime_ns
    cdef int64_t since_ns
    cdef int64_t deadline

    def __cinit__(self, *_, **__):
        self.deadline = NEVER

    @property
    def deadline_ns(self):
        """CLOCK_MONOTONIC from which on the lease is over; None: never."""
        return None if self.deadline == NEVER else self.deadline

    @deadline_ns.setter
    def deadline_ns(self, value):
        self.deadline = NEVER if value is None else value

    def follow(self, Heartbeat heartbeat, int64_t lifetime_ns=0, int64_t since_ns=0):
        """Holds the lease to last `lifetime_ns` from each keepalive that left, and from `since_ns`, when it was
        granted. None follows no one."""
        self.heartbeat = heartbeat
        self.lifetime_ns = lifetime_ns
        self.since_ns = since_ns

    @property
    def lapsed(self):
        """Whether the lease has run out, in the eyes of this process: nothing may be claimed."""
        return self.over()

    cdef bint over(self) noexcept:
        """Whether the lease has run out, in the eyes of this process."""
        if self.deadline == NEVER and self.heartbeat is None:
            return False
        return self.over_at(fp_clock_ns(CLOCK_MONOTONIC))

    cdef bint over_at(self, int64_t now) noexcept:
        cdef int64_t last
        if now >= self.deadline:
            return True
        if self.heartbeat is None:
            return False
        last = self.heartbeat.last_sent()
        return now - (last if last > self.since_ns else self.since_ns) >= self.lifetime_ns


include "frames_copy.pxi"
include "frames_writer.pxi"
include "frames_reader.pxi"
include "frames_cores.pxi"
