"""What other compiled modules may use of the slot core without passing through Python."""

from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum Drop:
    # The numbers of `framepool.shm.drop.DropReason`; a test keeps the two equal.
    ACCEPTED = 0
    NOT_COMMITTED = 1
    WRONG_SEQUENCE = 2
    OVERWRITTEN = 3
    PAYLOAD_OFFSET = 4
    PAYLOAD_SLOT_RANGE = 5
    PAYLOAD_SLOT = 6
    UNKNOWN_POOL = 7
    VALUES_LENGTH = 8
    HEADER_LENGTH = 9
    HEADER_SCHEMA = 10
    HEADER_VERSION = 11
    HEADER_TEMPLATE = 12
    HEADER_BLOCK_LENGTH = 13
    DTYPE = 14
    MAJOR_ORDER = 15
    NDIMS = 16
    PROGRESS_UNIT = 17
    NEGATIVE_DIM = 18
    TOO_LARGE = 19
    NEGATIVE_STRIDE = 20
    BIT_STRIDES = 21
    STRIDE_ORDER = 22
    STRIDE_OVERLAP = 23
    PROGRESS_AXIS = 24
    PROGRESS_STRIDE_ZERO = 25
    PROGRESS_STRIDE = 26
    EXTENT = 27

cdef struct Tensor:
    # A TensorHeader that broke no rule. Strides are in bytes, of a BIT tensor in bits.
    int64_t shape[8]
    int64_t strides[8]
    uint64_t nbytes
    uint64_t extent
    uint32_t progress_stride_bytes
    int16_t dtype
    int16_t major_order
    uint8_t ndims
    uint8_t progress_unit

cdef struct Slot:
    # A SlotHeader that broke no rule; `pool` is -1 when there is no payload to read.
    uint64_t seq
    uint64_t timestamp_ns
    uint32_t values_len_bytes
    uint32_t payload_slot
    uint32_t meta_version
    int32_t pool
    uint16_t pool_id

cdef struct PoolMap:
    unsigned char *base
    uint32_t stride_bytes
    uint16_t pool_id

cdef struct Claim:
    uint64_t seq
    uint32_t nbytes
    int32_t pool
    bint open

cdef int parse_tensor(const unsigned char *header, Tensor *out) noexcept nogil

cdef class Layout:
    cdef unsigned char raw[192]
    cdef Tensor tensor
    cdef object _shape
    cdef object _strides
    cdef object _element
    cdef object element(self)

cdef class CheckedSlot:
    cdef Slot slot
    cdef readonly Layout layout

cdef struct Spare:
    # An array that was handed out, for when nobody has it any more.
    PyObject *array
    PyObject *layout  # compared, and kept alive with it
    int32_t pool
    int flags

cdef class Ring:
    cdef unsigned char *slots
    cdef PoolMap *pools
    cdef int32_t npools
    cdef uint32_t mask
    cdef uint32_t busy
    cdef bint closed
    cdef Py_buffer *views
    cdef int32_t nviews
    cdef tuple arrays
    cdef Spare spares[4]
    cdef int next_spare
    cdef int open_(self) except -1
    cdef void release(self) noexcept
    cdef void leave(self) noexcept
    cdef object array_of(self, const unsigned char *start, int32_t pool, Layout layout, bint writable)
    cdef object new_array_of(self, const unsigned char *start, int32_t pool, Layout layout, bint writable)
    cdef void keep_spare(self, object array, int32_t pool, Layout layout)
    cdef void drop_spares(self) noexcept

cdef class RingWriter(Ring):
    cdef Claim *claims
    cdef uint64_t floor
    cdef object visibility_
    cdef int32_t fit(self, uint64_t nbytes) noexcept nogil
    cdef void begin(self, uint64_t seq, uint32_t nbytes, int32_t pool) noexcept nogil
    cdef void fill_header(self, const Claim *claim, const unsigned char *tensor_header,
                          uint64_t timestamp_ns, uint32_t meta_version) noexcept nogil
    cdef void finish(self, Claim *claim) noexcept nogil
    cdef Claim *claimable(self, seq, nbytes) except NULL
    cdef Claim *claim_slot(self, uint64_t seq, uint64_t nbytes) except NULL
    cdef Claim *claimed(self, uint64_t seq) except NULL
    cdef Claim *committable(self, uint64_t seq, Layout layout) except NULL
    cdef unsigned char *payload_of(self, const Claim *claim) noexcept nogil

cdef class RingReader(Ring):
    cdef Layout last
    cdef int check_header(self, uint64_t seq, unsigned char *copy, Slot *out) noexcept nogil
    cdef CheckedSlot check_slot(self, uint64_t seq, int *reason)
    cdef bint unchanged(self, uint64_t seq) noexcept nogil
    cdef const unsigned char *payload_of(self, CheckedSlot checked) except NULL
    cdef object view_of(self, CheckedSlot checked)
