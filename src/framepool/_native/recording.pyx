# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The way of a frame into a recording: one copy from the ring into memory that a disk can be given (`docs/recording.md`).

`Staging` is a ring of bytes between the thread that takes frames and the one that writes. A frame is copied and summed
up in one pass, its slot is checked once more, and only then the record counts: what was overwritten meanwhile leaves no
trace. The readable side of the format is `framepool.recorder.format`; a test holds the two against each other.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset, strerror

cimport cython

from framepool._native.seqlock cimport CheckedSlot, RingReader, Slot

from framepool.errors import AllocationError

cdef extern from "crc32c.h":
    void fp_crc32c_init() noexcept
    uint32_t fp_crc32c(uint32_t crc, const void *data, size_t length) noexcept nogil
    uint32_t fp_crc32c_copy(uint32_t crc, void *target, const void *source, size_t length) noexcept nogil

cdef extern from "recording.h":
    unsigned char *fp_map_twice(size_t capacity) noexcept nogil
    void fp_unmap_twice(unsigned char *base, size_t capacity) noexcept nogil
    uint64_t fp_position(const uint64_t *position) noexcept nogil
    void fp_set_position(uint64_t *position, uint64_t value) noexcept nogil

cdef extern from "layout.h":
    enum:
        FP_HEADER_SLOT_BYTES
        FP_HEADER_BYTES_OFFSET
        FP_TENSOR_HEADER_OFFSET
        FP_TENSOR_HEADER_BYTES
        FP_SLOT_HEADER_SEQ_COMMIT_OFFSET
        FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET
        FP_SLOT_HEADER_PAYLOAD_SLOT_OFFSET
        FP_SLOT_HEADER_POOL_ID_OFFSET
        FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET
        FP_SLOT_HEADER_META_VERSION_OFFSET
    const uint64_t NO_TIMESTAMP "FP_FRAME_DESCRIPTOR_TIMESTAMP_NS_NULL"
    const uint64_t NO_TRACE_ID "FP_FRAME_DESCRIPTOR_TRACE_ID_NULL"

cdef extern from *:
    """
    /* The first 256 bytes of a frame's header; the slot header follows. All fields lie on their natural alignment. */
    typedef struct {
        uint32_t magic, header_crc;
        uint16_t version, kind;
        uint32_t header_bytes;
        uint64_t segment_id, record_bytes, stored_bytes;
        uint32_t stored_crc, index;
        uint64_t recorded_ns, monotonic_ns;
        uint32_t stream_id, codec;
        uint64_t epoch, seq, publish_timestamp_ns, trace_id, raw_bytes;
        uint32_t raw_crc;
        unsigned char reserved[140];
        unsigned char slot[FP_HEADER_SLOT_BYTES];
    } fp_frame_header_t;
    _Static_assert(sizeof(fp_frame_header_t) == 512, "a frame's header has 512 bytes");
    """
    ctypedef struct fp_frame_header_t:
        uint32_t magic
        uint32_t header_crc
        uint16_t version
        uint16_t kind
        uint32_t header_bytes
        uint64_t segment_id
        uint64_t record_bytes
        uint64_t stored_bytes
        uint32_t stored_crc
        uint32_t index
        uint64_t recorded_ns
        uint64_t monotonic_ns
        uint32_t stream_id
        uint32_t codec
        uint64_t epoch
        uint64_t seq
        uint64_t publish_timestamp_ns
        uint64_t trace_id
        uint64_t raw_bytes
        uint32_t raw_crc
        unsigned char *slot

cdef enum:
    MAGIC = 0x43525046
    VERSION = 1
    KIND_FRAME = 2
    ALIGNMENT = 64
    PAGE = 4096
    HEADER_BYTES = 512
    CHECKED_FROM = 8

cdef enum:
    C_DONE = 0
    C_TORN = 1
    C_NO_ROOM = 2
    C_SEGMENT_FULL = 3
    C_LAPPED = 4

# How `Staging.stage` ended: with all of them, at one that was overwritten while or before it was copied, or for want of
# room here or in the segment.
DONE = C_DONE
TORN = C_TORN
NO_ROOM = C_NO_ROOM
SEGMENT_FULL = C_SEGMENT_FULL
LAPPED = C_LAPPED

fp_crc32c_init()


cdef struct Job:
    # A frame that is to be added, as far as it is needed without the interpreter.
    void *ring
    void *checked
    const unsigned char *source
    uint64_t length
    uint64_t seq
    uint64_t epoch
    uint64_t publish_timestamp_ns
    uint64_t trace_id
    uint32_t stream_id


cdef inline uint64_t padded(uint64_t length) noexcept nogil:
    return (length + ALIGNMENT - 1) & ~<uint64_t>(ALIGNMENT - 1)


@cython.final
cdef class Staging:
    """A ring of bytes at positions that only rise: one thread adds at `head`, another takes up to `ready` and lets go
    of it at `tail`.

    Whatever is between tail and head is one contiguous piece of memory, on a page where its position is. The headers of the
    frames that were added are kept beside it until they are asked for: they become the index of the segment.
    """

    cdef unsigned char *base
    cdef readonly uint64_t capacity
    cdef uint64_t head_
    cdef uint64_t ready_
    cdef uint64_t tail_
    cdef bint holding
    cdef Py_ssize_t exports
    cdef Job *jobs
    cdef Py_ssize_t jobs_allocated
    cdef unsigned char *headers
    cdef int64_t *offsets
    cdef readonly size_t rows
    cdef size_t rows_allocated

    def __cinit__(self, size_t capacity):
        self.map(capacity)

    def __dealloc__(self):
        if self.base != NULL:
            fp_unmap_twice(self.base, self.capacity)
        free(self.headers)
        free(self.offsets)
        free(self.jobs)

    cdef int map(self, size_t capacity) except -1:
        cdef unsigned char *base
        if capacity == 0 or capacity % PAGE:
            raise ValueError(f"a staging buffer of {capacity} bytes is no multiple of {PAGE}")
        with nogil:
            base = fp_map_twice(capacity)
        if base == NULL:
            raise AllocationError(f"no staging buffer of {capacity} bytes: {strerror(errno).decode()}")
        if self.base != NULL:
            fp_unmap_twice(self.base, self.capacity)
        self.base = base
        self.capacity = capacity
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.base, <Py_ssize_t>(2 * self.capacity), 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    @property
    def head(self):
        """Where what is added next begins. For the thread that adds."""
        return self.head_

    @property
    def ready(self):
        """Up to where it may be taken."""
        return fp_position(&self.ready_)

    @property
    def tail(self):
        """Where what is not released begins."""
        return fp_position(&self.tail_)

    @property
    def room(self):
        """Bytes that can be added now."""
        return self.capacity - (self.head_ - fp_position(&self.tail_))

    def grow(self, size_t capacity):
        """Makes it larger, if nothing is in it: whether it is so large now."""
        if capacity > self.capacity and self.head_ == fp_position(&self.tail_) and self.exports == 0:
            self.map(capacity)
        return self.capacity >= capacity

    def view(self, uint64_t start, uint64_t end):
        """The bytes between two positions, in one piece; they stay until they are released."""
        if not self.tail_ <= start <= end <= self.head_:
            raise ValueError(f"{start} to {end} is not between {self.tail} and {self.head}")
        cdef Py_ssize_t at = <Py_ssize_t>(start % self.capacity)
        return memoryview(self)[at:at + <Py_ssize_t>(end - start)]

    def release(self, uint64_t position):
        """Lets go of everything before a position."""
        if not self.tail_ <= position <= fp_position(&self.ready_):
            raise ValueError(f"{position} is not between {self.tail} and {self.ready}")
        fp_set_position(&self.tail_, position)

    def hold(self):
        """Keeps what is added from now on to itself, because it may still be changed."""
        self.holding = True

    def publish(self):
        """Lets everything be taken that was added."""
        self.holding = False
        fp_set_position(&self.ready_, self.head_)

    cdef void advance(self, uint64_t length) noexcept nogil:
        self.head_ += length
        if not self.holding:
            fp_set_position(&self.ready_, self.head_)

    def append(self, record):
        """Adds bytes, if there is room: whether there was."""
        cdef Py_buffer source
        cdef bint fits
        PyObject_GetBuffer(record, &source, PyBUF_SIMPLE)
        fits = <uint64_t>source.len <= self.capacity - (self.head_ - fp_position(&self.tail_))
        if fits:
            memcpy(self.base + self.head_ % self.capacity, source.buf, source.len)
            self.advance(source.len)
        PyBuffer_Release(&source)
        return fits

    def stage(
        self, list frames, Py_ssize_t first, uint64_t origin, uint64_t limit, uint64_t segment_id, uint32_t number,
        uint64_t recorded_ns, uint64_t monotonic_ns
    ):
        """Adds `frames[first:]`, numbered from `number` on, to the segment that began at position `origin` and is to
        have `limit` bytes: how many were added, and why not more.

        A segment without a frame takes one that is too long for it. A frame that was LAPPED or TORN is the one behind
        those that were added; one whose epoch is over is LAPPED. All of it runs without the interpreter's lock, taken
        once for all frames: a program that is busy in Python elsewhere costs no frames here.
        """
        cdef Py_ssize_t count = len(frames) - first
        cdef Py_ssize_t held = 0, done = 0
        cdef int code = C_DONE
        if count <= 0:
            return 0, C_DONE
        self.reserve(count)
        try:
            while held < count and self.describe(frames[first + held], &self.jobs[held]):
                held += 1
            with nogil:
                while done < held and code == C_DONE:
                    code = self.add(&self.jobs[done], origin, limit, segment_id, number, recorded_ns, monotonic_ns)
                    if code == C_DONE:
                        done += 1
                        number += 1
        finally:
            while held > 0:
                held -= 1
                (<RingReader>self.jobs[held].ring).leave()
        if code == C_DONE and done < count:
            code = C_LAPPED
        return done, code

    cdef bint describe(self, frame, Job *job) except -1:
        """What of a frame is needed, with its ring held open; False if that is closed."""
        cdef RingReader ring
        cdef CheckedSlot checked
        ring, checked = frame.slot
        if ring.closed:
            return False
        job.source = ring.payload_of(checked)
        job.length = checked.slot.values_len_bytes
        if checked.slot.pool >= 0 and job.length > ring.pools[checked.slot.pool].stride_bytes:
            raise ValueError("this slot was checked by another reader")
        told = frame.publish_timestamp_ns
        job.publish_timestamp_ns = NO_TIMESTAMP if told is None else told
        told = frame.trace_id
        job.trace_id = NO_TRACE_ID if told is None else told
        job.stream_id = frame.stream_id
        job.epoch = frame.epoch
        job.seq = checked.slot.seq
        job.ring = <void *>ring  # the caller's list keeps both
        job.checked = <void *>checked
        ring.busy += 1
        return True

    cdef int add(
        self, const Job *job, uint64_t origin, uint64_t limit, uint64_t segment_id, uint32_t number,
        uint64_t recorded_ns, uint64_t monotonic_ns
    ) noexcept nogil:
        cdef uint64_t record = padded(HEADER_BYTES + job.length)
        cdef unsigned char *target = self.base + self.head_ % self.capacity
        cdef fp_frame_header_t *header = <fp_frame_header_t *>target
        cdef uint32_t crc
        if number > 0 and self.head_ + record - origin > limit:
            return C_SEGMENT_FULL
        if record > self.capacity - (self.head_ - fp_position(&self.tail_)):
            return C_NO_ROOM
        if not unchanged(job):
            return C_LAPPED
        crc = fp_crc32c_copy(0, target + HEADER_BYTES, job.source, job.length)
        if not unchanged(job):
            return C_TORN
        memset(target + HEADER_BYTES + job.length, 0, record - HEADER_BYTES - job.length)
        memset(target, 0, HEADER_BYTES)
        header.magic = MAGIC
        header.version = VERSION
        header.kind = KIND_FRAME
        header.header_bytes = HEADER_BYTES
        header.segment_id = segment_id
        header.record_bytes = record
        header.stored_bytes = header.raw_bytes = job.length
        header.stored_crc = header.raw_crc = crc
        header.index = number
        header.recorded_ns = recorded_ns
        header.monotonic_ns = monotonic_ns
        header.stream_id = job.stream_id
        header.epoch = job.epoch
        header.seq = job.seq
        header.publish_timestamp_ns = job.publish_timestamp_ns
        header.trace_id = job.trace_id
        write_slot(header.slot, job)
        self.finish(header, origin)
        return C_DONE

    def restore(self, uint64_t position, payload, uint32_t codec, uint64_t origin):
        """Stores the last frame, which begins at `position` and is held, in another way: its payload is `payload`."""
        cdef fp_frame_header_t *header = <fp_frame_header_t *>(self.base + position % self.capacity)
        cdef Py_buffer source
        cdef uint64_t record
        if (not fp_position(&self.ready_) <= position < self.head_ or position + header.record_bytes != self.head_
                or self.rows == 0):
            raise ValueError(f"the last record does not begin at {position}, or is not held")
        PyObject_GetBuffer(payload, &source, PyBUF_SIMPLE)
        try:
            if <uint64_t>source.len > header.stored_bytes:
                raise ValueError("it is longer than before")
            record = padded(HEADER_BYTES + source.len)
            header.stored_crc = fp_crc32c_copy(0, <unsigned char *>header + HEADER_BYTES, source.buf, source.len)
            header.stored_bytes = source.len
            header.record_bytes = record
            header.codec = codec
            memset(<unsigned char *>header + HEADER_BYTES + source.len, 0, record - HEADER_BYTES - source.len)
        finally:
            PyBuffer_Release(&source)
        self.head_ = position
        self.rows -= 1
        self.finish(header, origin)

    cdef void finish(self, fp_frame_header_t *header, uint64_t origin) noexcept nogil:
        """Sums the header up, notes it for the index, and makes the record count."""
        header.header_crc = fp_crc32c(0, <unsigned char *>header + CHECKED_FROM, HEADER_BYTES - CHECKED_FROM)
        memcpy(self.headers + self.rows * HEADER_BYTES, header, HEADER_BYTES)
        self.offsets[self.rows] = <int64_t>(self.head_ - origin)
        self.rows += 1
        self.advance(header.record_bytes)

    cdef int reserve(self, Py_ssize_t count) except -1:
        """Room for so many more frames beside the buffer."""
        cdef size_t allocated = self.rows_allocated if self.rows_allocated else 1024
        cdef void *grown
        if count > self.jobs_allocated:
            grown = realloc(self.jobs, count * sizeof(Job))
            if grown == NULL:
                raise MemoryError
            self.jobs = <Job *>grown
            self.jobs_allocated = count
        if self.rows + count <= self.rows_allocated:
            return 0
        while allocated < self.rows + count:
            allocated *= 2
        grown = realloc(self.headers, allocated * HEADER_BYTES)
        if grown == NULL:
            raise MemoryError
        self.headers = <unsigned char *>grown
        grown = realloc(self.offsets, allocated * sizeof(int64_t))
        if grown == NULL:
            raise MemoryError
        self.offsets = <int64_t *>grown
        self.rows_allocated = allocated
        return 0

    def take_rows(self):
        """The offsets and the headers of the frames since the last call, as bytes."""
        cdef size_t rows = self.rows
        self.rows = 0
        return (
            PyBytes_FromStringAndSize(<char *>self.offsets, <Py_ssize_t>(rows * sizeof(int64_t))),
            PyBytes_FromStringAndSize(<char *>self.headers, <Py_ssize_t>(rows * HEADER_BYTES)),
        )


cdef inline bint unchanged(const Job *job) noexcept nogil:
    """Whether the slot still holds the frame; all loads of it come before."""
    return (<RingReader>job.ring).unchanged(job.seq)


cdef void write_slot(unsigned char *slot, const Job *job) noexcept nogil:
    """The slot header as it was in the ring, committed; the padding that says nothing is zero."""
    cdef Slot *was = &(<CheckedSlot>job.checked).slot
    cdef uint64_t word = was.seq << 1 | 1
    cdef uint32_t length = FP_TENSOR_HEADER_BYTES
    memcpy(slot + FP_SLOT_HEADER_SEQ_COMMIT_OFFSET, &word, 8)
    memcpy(slot + FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET, &was.values_len_bytes, 4)
    memcpy(slot + FP_SLOT_HEADER_PAYLOAD_SLOT_OFFSET, &was.payload_slot, 4)
    memcpy(slot + FP_SLOT_HEADER_POOL_ID_OFFSET, &was.pool_id, 2)
    memcpy(slot + FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET, &was.timestamp_ns, 8)
    memcpy(slot + FP_SLOT_HEADER_META_VERSION_OFFSET, &was.meta_version, 4)
    memcpy(slot + FP_HEADER_BYTES_OFFSET, &length, 4)
    memcpy(slot + FP_TENSOR_HEADER_OFFSET, (<CheckedSlot>job.checked).layout.raw, FP_TENSOR_HEADER_BYTES)
