# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The bridge's data path in C: chunks out of a ring and frames out of chunks, one copy of each byte on either side
(Bridge 5, 6).

`ChunkWriter` copies from shared memory straight into Aeron's log; `ChunkReceiver` hands each chunk where it lies in the
log to the `Assembler` of its stream, which copies it straight into the slot that the frame will be read from. Copies
run without the interpreter's lock, nothing is allocated for a chunk, and nothing waits.

The readable twins are `framepool.bridge.chunks` and `framepool.bridge.assembler`; tests compare them on shuffled, lost,
repeated, mixed up and hostile chunks. What goes beside a chunk in Aeron's reserved value is told in `bridge.chunks`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport PyObject

cimport cython

from framepool._native.aeron cimport BACK_PRESSURED, ERROR, NOT_CONNECTED, AnyPublication, Subscription
from framepool._native.aeron_api cimport aeron_buffer_claim_t, fp_deliver_t, fp_retract_t
from framepool._native.seqlock cimport (
    EXTENT,
    PAYLOAD_OFFSET,
    UNKNOWN_POOL,
    VALUES_LENGTH,
    CheckedSlot,
    Claim,
    Layout,
    RingReader,
    RingWriter,
    Tensor,
    parse_tensor,
)
from framepool._native.seqlock cimport HEADER_LENGTH as TENSOR_HEADER_LENGTH

from framepool.errors import ConfigurationError
from framepool.shm.drop import DropReason

cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "framepool's messages are little-endian only (Wire 15.1)"
    #endif
    """

cdef extern from "crc32c.h" nogil:
    void fp_crc32c_init() noexcept
    uint32_t fp_crc32c(uint32_t crc, const void *data, size_t length) noexcept
    uint32_t fp_crc32c_copy(uint32_t crc, void *target, const void *source, size_t length) noexcept

cdef extern from "layout.h":
    enum:
        FP_MESSAGE_HEADER_BYTES
        FP_MESSAGE_HEADER_BLOCK_LENGTH_OFFSET
        FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET
        FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET
        FP_MESSAGE_HEADER_VERSION_OFFSET
        FP_DATA_LENGTH_BYTES
        FP_HEADER_SLOT_BYTES
        FP_HEADER_BYTES_OFFSET
        FP_TENSOR_HEADER_OFFSET
        FP_TENSOR_HEADER_BYTES
        FP_BOOL_TRUE
        FP_BRIDGE_SCHEMA_ID
        FP_BRIDGE_SCHEMA_VERSION
        FP_BRIDGE_FRAME_CHUNK_TEMPLATE_ID
        FP_BRIDGE_FRAME_CHUNK_BLOCK_LENGTH
        FP_BRIDGE_FRAME_CHUNK_STREAM_ID_OFFSET
        FP_BRIDGE_FRAME_CHUNK_EPOCH_OFFSET
        FP_BRIDGE_FRAME_CHUNK_SEQ_OFFSET
        FP_BRIDGE_FRAME_CHUNK_CHUNK_INDEX_OFFSET
        FP_BRIDGE_FRAME_CHUNK_CHUNK_INDEX_MAX
        FP_BRIDGE_FRAME_CHUNK_CHUNK_COUNT_OFFSET
        FP_BRIDGE_FRAME_CHUNK_CHUNK_COUNT_MAX
        FP_BRIDGE_FRAME_CHUNK_CHUNK_OFFSET_OFFSET
        FP_BRIDGE_FRAME_CHUNK_CHUNK_LENGTH_OFFSET
        FP_BRIDGE_FRAME_CHUNK_CHUNK_LENGTH_MAX
        FP_BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH_OFFSET
        FP_BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH_MAX
        FP_BRIDGE_FRAME_CHUNK_HEADER_INCLUDED_OFFSET
        FP_SLOT_HEADER_SEQ_COMMIT_OFFSET
        FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET
        FP_SLOT_HEADER_POOL_ID_OFFSET
        FP_SLOT_HEADER_PAYLOAD_OFFSET_OFFSET
        FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET
        FP_SLOT_HEADER_META_VERSION_OFFSET

cdef enum:
    HEADER_AT = FP_MESSAGE_HEADER_BYTES + FP_BRIDGE_FRAME_CHUNK_BLOCK_LENGTH
    # A message without its payload, and without the header block of chunk 0.
    OVERHEAD = HEADER_AT + 2 * FP_DATA_LENGTH_BYTES
    # Where Aeron's reserved value stands in the header of a data frame.
    RESERVED_VALUE_OFFSET = 24
    # A copy this long releases the interpreter; below it, the release costs more than it gives.
    RELEASE_FROM = 65536

cdef uint64_t CHECKSUM_THERE = <uint64_t>1 << 32

cdef enum:
    # The numbers of `framepool.bridge.chunks.ChunkDrop`; a test keeps the two equal.
    TAKEN = 0
    SCHEMA = 1
    VERSION = 2
    TEMPLATE = 3
    DIALECT = 4
    MALFORMED = 5
    OTHER_STREAM = 6
    NOT_ANNOUNCED = 7
    OLD_EPOCH = 8
    NEW_EPOCH = 9
    NO_TARGET = 10
    CHUNK_COUNT = 11
    CHUNK_INDEX = 12
    HEADER_BYTES = 13
    PAYLOAD_BYTES = 14
    CHUNK_BYTES = 15
    SEQUENCE = 16
    BEHIND = 17
    GIVEN_UP = 18
    HEADER_PLACE = 19
    FIRST_OFFSET = 20
    SLICE = 21
    PAYLOAD_LENGTH = 22
    SOURCE_STRIDE = 23
    NO_POOL_FITS = 24
    CROWDED = 25
    INCONSISTENT = 26
    CONFLICT = 27
    SEQ_COMMIT = 28
    VALUES_LEN = 29
    HEADER = 30
    OVERLAP = 31
    COVERAGE = 32
    CHECKSUM = 33
    TIMEOUT = 34
    OVERTAKEN = 35
    EPOCH_CHANGE = 36
    TARGET_CHANGE = 37
    TORN = 38
    REFUSED = 39
    CAUSES_END = 40

# The names of the causes by their number, as this module was compiled with them.
CAUSES = (
    None, "SCHEMA", "VERSION", "TEMPLATE", "DIALECT", "MALFORMED", "OTHER_STREAM", "NOT_ANNOUNCED", "OLD_EPOCH",
    "NEW_EPOCH", "NO_TARGET", "CHUNK_COUNT", "CHUNK_INDEX", "HEADER_BYTES", "PAYLOAD_BYTES", "CHUNK_BYTES", "SEQUENCE",
    "BEHIND", "GIVEN_UP", "HEADER_PLACE", "FIRST_OFFSET", "SLICE", "PAYLOAD_LENGTH", "SOURCE_STRIDE", "NO_POOL_FITS",
    "CROWDED", "INCONSISTENT", "CONFLICT", "SEQ_COMMIT", "VALUES_LEN", "HEADER", "OVERLAP", "COVERAGE", "CHECKSUM",
    "TIMEOUT", "OVERTAKEN", "EPOCH_CHANGE", "TARGET_CHANGE", "TORN", "REFUSED",
)

cdef uint8_t MESSAGE_HEADER[FP_MESSAGE_HEADER_BYTES]


cdef inline uint16_t get16(const uint8_t *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t get64(const uint8_t *at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline void put16(uint8_t *at, uint16_t value) noexcept nogil:
    memcpy(at, &value, 2)


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    memcpy(at, &value, 4)


cdef inline void put64(uint8_t *at, uint64_t value) noexcept nogil:
    memcpy(at, &value, 8)


put16(MESSAGE_HEADER + FP_MESSAGE_HEADER_BLOCK_LENGTH_OFFSET, FP_BRIDGE_FRAME_CHUNK_BLOCK_LENGTH)
put16(MESSAGE_HEADER + FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET, FP_BRIDGE_FRAME_CHUNK_TEMPLATE_ID)
put16(MESSAGE_HEADER + FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET, FP_BRIDGE_SCHEMA_ID)
put16(MESSAGE_HEADER + FP_MESSAGE_HEADER_VERSION_OFFSET, FP_BRIDGE_SCHEMA_VERSION)
fp_crc32c_init()

cdef struct Chunk:
    uint64_t epoch
    uint64_t seq
    uint32_t stream_id
    uint32_t index
    uint32_t count
    uint32_t offset
    uint32_t length
    uint32_t payload_length
    uint32_t header_size
    uint32_t payload_size
    const uint8_t *header
    const uint8_t *payload
    bint header_included


cdef int decode_chunk(const uint8_t *message, size_t length, Chunk *out) noexcept nogil:
    """Reads a message without going beyond its bytes, whatever they say; TAKEN, or why it is no chunk."""
    cdef const uint8_t *block = message + FP_MESSAGE_HEADER_BYTES
    cdef size_t left
    if length < FP_MESSAGE_HEADER_BYTES:
        return MALFORMED
    if memcmp(message, MESSAGE_HEADER, FP_MESSAGE_HEADER_BYTES) != 0:
        if get16(message + FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET) != FP_BRIDGE_SCHEMA_ID:
            return SCHEMA
        if get16(message + FP_MESSAGE_HEADER_VERSION_OFFSET) != FP_BRIDGE_SCHEMA_VERSION:
            return VERSION
        if get16(message + FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET) != FP_BRIDGE_FRAME_CHUNK_TEMPLATE_ID:
            return TEMPLATE
        return DIALECT
    if length < OVERHEAD:
        return MALFORMED
    out.stream_id = get32(block + FP_BRIDGE_FRAME_CHUNK_STREAM_ID_OFFSET)
    out.epoch = get64(block + FP_BRIDGE_FRAME_CHUNK_EPOCH_OFFSET)
    out.seq = get64(block + FP_BRIDGE_FRAME_CHUNK_SEQ_OFFSET)
    out.index = get32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_INDEX_OFFSET)
    out.count = get32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_COUNT_OFFSET)
    out.offset = get32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_OFFSET_OFFSET)
    out.length = get32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_LENGTH_OFFSET)
    out.payload_length = get32(block + FP_BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH_OFFSET)
    out.header_included = block[FP_BRIDGE_FRAME_CHUNK_HEADER_INCLUDED_OFFSET]
    if (
        block[FP_BRIDGE_FRAME_CHUNK_HEADER_INCLUDED_OFFSET] > FP_BOOL_TRUE
        or out.index > FP_BRIDGE_FRAME_CHUNK_CHUNK_INDEX_MAX
        or out.count > FP_BRIDGE_FRAME_CHUNK_CHUNK_COUNT_MAX
        or out.length > FP_BRIDGE_FRAME_CHUNK_CHUNK_LENGTH_MAX
        or out.payload_length > FP_BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH_MAX
    ):
        return MALFORMED
    left = length - OVERHEAD
    out.header_size = get32(message + HEADER_AT)
    if out.header_size > FP_HEADER_SLOT_BYTES or out.header_size > left:
        return MALFORMED
    left -= out.header_size
    out.header = message + HEADER_AT + FP_DATA_LENGTH_BYTES
    out.payload_size = get32(out.header + out.header_size)
    if out.payload_size != left:
        return MALFORMED
    out.payload = out.header + out.header_size + FP_DATA_LENGTH_BYTES
    return TAKEN


include "bridge_writer.pxi"
include "bridge_assembler.pxi"
include "bridge_receiver.pxi"
