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

from framepool._native.seqlock cimport CheckedSlot, RingReader

from framepool.errors import AllocationError

cdef extern from "crc32c.h":
    void fp_crc32c_init() noexcept
    uint32_t fp_crc32c(uint32_t crc, const void *data, size_t length) noexcept nogil
    uint32_t fp_crc32c_copy(uint32_t crc, void *target, const void *source, size_t length) noexcept nogil

cdef extern from "recording.h":
    unsigned char *fp_map_twice(size_t capacity) noexcept nogil
    void fp_unmap_twice(unsigned char *base, size_t capacity) noexcept nogil

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
    # A copy this long releases the interpreter; below it, the release costs more than it gives.
    RELEASE_FROM = 65536

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


cdef inline uint64_t padded(uint64_t length) noexcept nogil:
    return (length + ALIGNMENT - 1) & ~<uint64_t>(ALIGNMENT - 1)


@cython.final
cdef class Staging:
    """A ring of bytes at positions that only rise: one thread adds at `head`, another lets go at `tail`.

    Whatever is between the two is one contiguous piece of memory, on a page where its position is. The headers of the
    frames that were added are kept beside it until they are asked for: they become the index of the segment.
    """

    cdef unsigned char *base
    cdef readonly uint64_t capacity
    cdef readonly uint64_t head
    cdef readonly uint64_t tail
    cdef Py_ssize_t exports
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
    def room(self):
        """Bytes that can be added now."""
        return self.capacity - (self.head - self.tail)

    def grow(self, size_t capacity):
        """Makes it larger, if nothing is in it: whether it is so large now."""
        if capacity > self.capacity and self.head == self.tail and self.exports == 0:
            self.map(capacity)
        return self.capacity >= capacity

    def view(self, uint64_t start, uint64_t end):
        """The bytes between two positions, in one piece; they stay until they are released."""
        if not self.tail <= start <= end <= self.head:
            raise ValueError(f"{start} to {end} is not between {self.tail} and {self.head}")
        cdef Py_ssize_t at = <Py_ssize_t>(start % self.capacity)
        return memoryview(self)[at:at + <Py_ssize_t>(end - start)]

    def release(self, uint64_t position):
        """Lets go of everything before a position."""
        if not self.tail <= position <= self.head:
            raise ValueError(f"{position} is not between {self.tail} and {self.head}")
        self.tail = position

    def append(self, record):
        """Adds bytes, if there is room: whether there was."""
        cdef Py_buffer source
        cdef bint fits
        PyObject_GetBuffer(record, &source, PyBUF_SIMPLE)
        fits = <uint64_t>source.len <= self.capacity - (self.head - self.tail)
        if fits:
            memcpy(self.base + self.head % self.capacity, source.buf, source.len)
            self.head += source.len
        PyBuffer_Release(&source)
        return fits

    def stage(
        self, list frames, Py_ssize_t first, uint64_t origin, uint64_t limit, uint64_t segment_id, uint32_t number,
        uint64_t recorded_ns, uint64_t monotonic_ns
    ):
        """Adds `frames[first:]`, numbered from `number` on, to the segment that began at position `origin` and is to
        have `limit` bytes: how many were added, and why not more.

        A segment without a frame takes one that is too long for it. A frame that was LAPPED or TORN is the one behind
        those that were added; one whose epoch is over is LAPPED.
        """
        cdef Py_ssize_t at
        cdef int code = C_DONE
        for at in range(first, len(frames)):
            code = self.add(frames[at], origin, limit, segment_id, number, recorded_ns, monotonic_ns)
            if code:
                return at - first, code
            number += 1
        return len(frames) - first, code

    cdef int add(
        self, frame, uint64_t origin, uint64_t limit, uint64_t segment_id, uint32_t number, uint64_t recorded_ns,
        uint64_t monotonic_ns
    ) except -1:
        cdef RingReader ring
        cdef CheckedSlot checked
        ring, checked = frame.slot
        if ring.closed or not ring.unchanged(checked.slot.seq):
            return C_LAPPED
        cdef const unsigned char *source = ring.payload_of(checked)
        cdef size_t length = checked.slot.values_len_bytes
        cdef uint64_t record = padded(HEADER_BYTES + length)
        cdef unsigned char *target
        cdef fp_frame_header_t *header
        cdef uint32_t crc = 0
        cdef bint whole
        if checked.slot.pool >= 0 and length > ring.pools[checked.slot.pool].stride_bytes:
            raise ValueError("this slot was checked by another reader")
        if number > 0 and self.head + record - origin > limit:
            return C_SEGMENT_FULL
        if record > self.capacity - (self.head - self.tail):
            return C_NO_ROOM
        self.reserve_row()
        target = self.base + self.head % self.capacity
        header = <fp_frame_header_t *>target
        if length < RELEASE_FROM:
            crc = fp_crc32c_copy(0, target + HEADER_BYTES, source, length)
            whole = ring.unchanged(checked.slot.seq)
        else:
            ring.busy += 1
            with nogil:
                crc = fp_crc32c_copy(0, target + HEADER_BYTES, source, length)
                whole = ring.unchanged(checked.slot.seq)
            ring.leave()
        if not whole:
            return C_TORN
        memset(target + HEADER_BYTES + length, 0, record - HEADER_BYTES - length)
        memset(target, 0, HEADER_BYTES)
        header.magic = MAGIC
        header.version = VERSION
        header.kind = KIND_FRAME
        header.header_bytes = HEADER_BYTES
        header.segment_id = segment_id
        header.record_bytes = record
        header.stored_bytes = header.raw_bytes = length
        header.stored_crc = header.raw_crc = crc
        header.index = number
        header.recorded_ns = recorded_ns
        header.monotonic_ns = monotonic_ns
        header.stream_id = frame.stream_id
        header.epoch = frame.epoch
        header.seq = checked.slot.seq
        told = frame.publish_timestamp_ns
        header.publish_timestamp_ns = NO_TIMESTAMP if told is None else told
        told = frame.trace_id
        header.trace_id = NO_TRACE_ID if told is None else told
        write_slot(header.slot, checked)
        self.finish(header, origin)
        return C_DONE

    def restore(self, uint64_t position, payload, uint32_t codec, uint64_t origin):
        """Stores the last frame, which begins at `position`, in another way: its payload is `payload` now."""
        cdef fp_frame_header_t *header = <fp_frame_header_t *>(self.base + position % self.capacity)
        cdef Py_buffer source
        cdef uint64_t record
        if not self.tail <= position < self.head or position + header.record_bytes != self.head or self.rows == 0:
            raise ValueError(f"the last record does not begin at {position}")
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
        self.head = position
        self.rows -= 1
        self.finish(header, origin)

    cdef void finish(self, fp_frame_header_t *header, uint64_t origin) noexcept:
        """Sums the header up, notes it for the index, and makes the record count."""
        header.header_crc = fp_crc32c(0, <unsigned char *>header + CHECKED_FROM, HEADER_BYTES - CHECKED_FROM)
        memcpy(self.headers + self.rows * HEADER_BYTES, header, HEADER_BYTES)
        self.offsets[self.rows] = <int64_t>(self.head - origin)
        self.rows += 1
        self.head += header.record_bytes

    cdef int reserve_row(self) except -1:
        cdef size_t allocated
        cdef void *grown
        if self.rows < self.rows_allocated:
            return 0
        allocated = self.rows_allocated * 2 if self.rows_allocated else 1024
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


cdef void write_slot(unsigned char *slot, CheckedSlot checked) noexcept:
    """The slot header as it was in the ring, committed; the padding that says nothing is zero."""
    cdef uint64_t word = checked.slot.seq << 1 | 1
    cdef uint32_t length = FP_TENSOR_HEADER_BYTES
    memcpy(slot + FP_SLOT_HEADER_SEQ_COMMIT_OFFSET, &word, 8)
    memcpy(slot + FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET, &checked.slot.values_len_bytes, 4)
    memcpy(slot + FP_SLOT_HEADER_PAYLOAD_SLOT_OFFSET, &checked.slot.payload_slot, 4)
    memcpy(slot + FP_SLOT_HEADER_POOL_ID_OFFSET, &checked.slot.pool_id, 2)
    memcpy(slot + FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET, &checked.slot.timestamp_ns, 8)
    memcpy(slot + FP_SLOT_HEADER_META_VERSION_OFFSET, &checked.slot.meta_version, 4)
    memcpy(slot + FP_HEADER_BYTES_OFFSET, &length, 4)
    memcpy(slot + FP_TENSOR_HEADER_OFFSET, checked.layout.raw, FP_TENSOR_HEADER_BYTES)
