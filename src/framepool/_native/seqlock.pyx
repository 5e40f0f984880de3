# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The slot in C: claim, fill, commit on one side, check, copy, check again on the other (Wire 8.2, 8.3, 15.3).

The readable twin is `framepool.shm.slot` with `ring`, `pool` and `tensor`; tests compare the two on random and
hostile slots. What this one adds is the memory order: `seqlock.h` has the four steps and says what each keeps in place.

The bytes between the two checks are copied by memcpy and may race with a writer; the copy is used only once the
second check has shown that there was none. Every field is validated from one private copy of the header, so a
hostile writer cannot change what was checked. `seq_commit` is the only aligned field: the others go by memcpy.
"""

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject, PyTypeObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cimport cython
cimport numpy as cnp

import numpy as np

from framepool.errors import NoPoolFits, RegionError, RegionSizeError, SequenceError, TensorError
from framepool.shm.drop import DropReason
from framepool.wire.dtypes import NUMPY_DTYPES

cdef extern from *:
    """
    #include <stdint.h>

    static inline int fp_times(int64_t a, int64_t b, int64_t *product) {
        return __builtin_mul_overflow(a, b, product);
    }
    """
    bint fp_times(int64_t a, int64_t b, int64_t *product) noexcept nogil

cdef extern from "seqlock.h":
    void fp_slot_begin(void *slot, uint64_t seq) noexcept nogil
    void fp_slot_commit(void *slot, uint64_t seq) noexcept nogil
    uint64_t fp_slot_look(const void *slot) noexcept nogil
    uint64_t fp_slot_look_again(const void *slot) noexcept nogil

cdef extern from "layout.h":
    enum:
        FP_SUPERBLOCK_SIZE
        FP_HEADER_SLOT_BYTES
        FP_MAX_DIMS
        FP_MESSAGE_HEADER_BYTES
        FP_HEADER_BYTES_OFFSET
        FP_TENSOR_HEADER_OFFSET
        FP_TENSOR_HEADER_BYTES
        FP_CONTROL_SCHEMA_ID
        FP_CONTROL_SCHEMA_VERSION
        FP_MESSAGE_HEADER_BLOCK_LENGTH_OFFSET
        FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET
        FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET
        FP_MESSAGE_HEADER_VERSION_OFFSET
        FP_SLOT_HEADER_SEQ_COMMIT_OFFSET
        FP_SLOT_HEADER_SEQ_COMMIT_SIZE
        FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET
        FP_SLOT_HEADER_PAYLOAD_SLOT_OFFSET
        FP_SLOT_HEADER_POOL_ID_OFFSET
        FP_SLOT_HEADER_PAYLOAD_OFFSET_OFFSET
        FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET
        FP_SLOT_HEADER_META_VERSION_OFFSET
        FP_TENSOR_HEADER_TEMPLATE_ID
        FP_TENSOR_HEADER_BLOCK_LENGTH
        FP_TENSOR_HEADER_DTYPE_OFFSET
        FP_TENSOR_HEADER_MAJOR_ORDER_OFFSET
        FP_TENSOR_HEADER_NDIMS_OFFSET
        FP_TENSOR_HEADER_PROGRESS_UNIT_OFFSET
        FP_TENSOR_HEADER_PROGRESS_STRIDE_BYTES_OFFSET
        FP_TENSOR_HEADER_DIMS_OFFSET
        FP_TENSOR_HEADER_STRIDES_OFFSET
        FP_DTYPE_UINT8
        FP_DTYPE_INT8
        FP_DTYPE_UINT16
        FP_DTYPE_INT16
        FP_DTYPE_UINT32
        FP_DTYPE_INT32
        FP_DTYPE_UINT64
        FP_DTYPE_INT64
        FP_DTYPE_FLOAT32
        FP_DTYPE_FLOAT64
        FP_DTYPE_BOOLEAN
        FP_DTYPE_BYTES
        FP_DTYPE_BIT
        FP_MAJOR_ORDER_ROW
        FP_MAJOR_ORDER_COLUMN
        FP_PROGRESS_UNIT_NONE
        FP_PROGRESS_UNIT_ROWS
        FP_PROGRESS_UNIT_COLUMNS

cdef extern from *:
    """
    /* What the structs of seqlock.pxd and the slot image below take for granted. */
    _Static_assert(FP_MAX_DIMS == 8 && FP_TENSOR_HEADER_BYTES == 192, "seqlock.pxd has other sizes");
    _Static_assert(FP_TENSOR_HEADER_OFFSET + FP_TENSOR_HEADER_BYTES == FP_HEADER_SLOT_BYTES, "slot is not full");
    _Static_assert(FP_SLOT_HEADER_SEQ_COMMIT_OFFSET == 0, "seq_commit leads the slot (Wire 8.2)");
    _Static_assert(sizeof(npy_intp) == sizeof(int64_t), "numpy counts in other numbers than a tensor layout");
    """

cdef enum:
    # A copy this long releases the interpreter; below it, the release costs more than it gives.
    RELEASE_FROM = 65536

cdef tuple REASON = (None, *DropReason)  # by number

# The names and numbers of the rules as this module was compiled with them.
REASONS = {
    "NOT_COMMITTED": NOT_COMMITTED,
    "WRONG_SEQUENCE": WRONG_SEQUENCE,
    "OVERWRITTEN": OVERWRITTEN,
    "PAYLOAD_OFFSET": PAYLOAD_OFFSET,
    "PAYLOAD_SLOT_RANGE": PAYLOAD_SLOT_RANGE,
    "PAYLOAD_SLOT": PAYLOAD_SLOT,
    "UNKNOWN_POOL": UNKNOWN_POOL,
    "VALUES_LENGTH": VALUES_LENGTH,
    "HEADER_LENGTH": HEADER_LENGTH,
    "HEADER_SCHEMA": HEADER_SCHEMA,
    "HEADER_VERSION": HEADER_VERSION,
    "HEADER_TEMPLATE": HEADER_TEMPLATE,
    "HEADER_BLOCK_LENGTH": HEADER_BLOCK_LENGTH,
    "DTYPE": DTYPE,
    "MAJOR_ORDER": MAJOR_ORDER,
    "NDIMS": NDIMS,
    "PROGRESS_UNIT": PROGRESS_UNIT,
    "NEGATIVE_DIM": NEGATIVE_DIM,
    "TOO_LARGE": TOO_LARGE,
    "NEGATIVE_STRIDE": NEGATIVE_STRIDE,
    "BIT_STRIDES": BIT_STRIDES,
    "STRIDE_ORDER": STRIDE_ORDER,
    "STRIDE_OVERLAP": STRIDE_OVERLAP,
    "PROGRESS_AXIS": PROGRESS_AXIS,
    "PROGRESS_STRIDE_ZERO": PROGRESS_STRIDE_ZERO,
    "PROGRESS_STRIDE": PROGRESS_STRIDE,
    "EXTENT": EXTENT,
}

cdef extern from "numpy/arrayobject.h":
    # Not in numpy's own declarations for Cython. It takes over the reference to `dtype`.
    ctypedef struct PyArray_Descr
    object PyArray_NewFromDescr(
        PyTypeObject *kind, PyArray_Descr *dtype, int ndims, const cnp.npy_intp *shape, const cnp.npy_intp *strides,
        void *data, int flags, PyObject *like)
    PyTypeObject PyArray_Type

cdef extern from *:
    """
    #include <string.h>

    /* Whether an array is ours alone and nobody changed what it says of itself. */
    static inline int fp_array_free(
        PyObject *object, PyObject *dtype, int flags, int ndims, const int64_t *shape, const int64_t *strides)
    {
        const PyArrayObject_fields *array = (const PyArrayObject_fields *)object;
        return Py_REFCNT(object) == 1 && array->flags == flags && array->nd == ndims && array->weakreflist == NULL &&
            (PyObject *)array->descr == dtype &&
            0 == memcmp(array->dimensions, shape, (size_t)ndims * 8) &&
            0 == memcmp(array->strides, strides, (size_t)ndims * 8);
    }

    static inline void fp_array_point(PyObject *object, const unsigned char *at)
    {
        ((PyArrayObject_fields *)object)->data = (char *)at;
    }
    """
    bint fp_array_free(
        PyObject *array, PyObject *dtype, int flags, int ndims, const int64_t *shape, const int64_t *strides) noexcept
    void fp_array_point(PyObject *array, const unsigned char *at) noexcept

cdef enum:
    SPARES = 4

cnp.import_array()

cdef dict NUMPY = NUMPY_DTYPES
cdef object new_array = np.ndarray
cdef object from_buffer = np.frombuffer
cdef object uint8 = np.dtype("u1")


cdef inline uint16_t u16(const unsigned char *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline uint32_t u32(const unsigned char *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t u64(const unsigned char *at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline int64_t element_size(int16_t dtype) noexcept nogil:
    """Bytes of an element, for BIT one bit; 0 for a dtype that is not of the registry (Wire 15.8)."""
    if dtype in (FP_DTYPE_UINT8, FP_DTYPE_INT8, FP_DTYPE_BOOLEAN, FP_DTYPE_BYTES, FP_DTYPE_BIT):
        return 1
    if dtype in (FP_DTYPE_UINT16, FP_DTYPE_INT16):
        return 2
    if dtype in (FP_DTYPE_UINT32, FP_DTYPE_INT32, FP_DTYPE_FLOAT32):
        return 4
    if dtype in (FP_DTYPE_UINT64, FP_DTYPE_INT64, FP_DTYPE_FLOAT64):
        return 8
    return 0


cdef int parse_tensor(const unsigned char *header, Tensor *out) noexcept nogil:
    """Decodes an embedded TensorHeader of 192 bytes; the number of the first rule it breaks, else 0."""
    cdef const unsigned char *block = header + FP_MESSAGE_HEADER_BYTES
    cdef int64_t element, size, dim
    cdef uint64_t span, step
    cdef int32_t stride
    cdef int i, k, axis, inner = -1
    cdef bint empty = False, declared = False
    if u16(header + FP_MESSAGE_HEADER_SCHEMA_ID_OFFSET) != FP_CONTROL_SCHEMA_ID:
        return HEADER_SCHEMA
    if u16(header + FP_MESSAGE_HEADER_VERSION_OFFSET) != FP_CONTROL_SCHEMA_VERSION:
        return HEADER_VERSION
    if u16(header + FP_MESSAGE_HEADER_TEMPLATE_ID_OFFSET) != FP_TENSOR_HEADER_TEMPLATE_ID:
        return HEADER_TEMPLATE
    if u16(header + FP_MESSAGE_HEADER_BLOCK_LENGTH_OFFSET) != FP_TENSOR_HEADER_BLOCK_LENGTH:
        return HEADER_BLOCK_LENGTH

    out.dtype = <int16_t>u16(block + FP_TENSOR_HEADER_DTYPE_OFFSET)
    out.major_order = <int16_t>u16(block + FP_TENSOR_HEADER_MAJOR_ORDER_OFFSET)
    out.ndims = block[FP_TENSOR_HEADER_NDIMS_OFFSET]
    out.progress_unit = block[FP_TENSOR_HEADER_PROGRESS_UNIT_OFFSET]
    out.progress_stride_bytes = u32(block + FP_TENSOR_HEADER_PROGRESS_STRIDE_BYTES_OFFSET)
    element = element_size(out.dtype)
    if element == 0:
        return DTYPE
    if out.major_order != FP_MAJOR_ORDER_ROW and out.major_order != FP_MAJOR_ORDER_COLUMN:
        return MAJOR_ORDER
    if out.ndims == 0 or out.ndims > FP_MAX_DIMS:
        return NDIMS
    if out.progress_unit > FP_PROGRESS_UNIT_COLUMNS:
        return PROGRESS_UNIT

    for i in range(out.ndims):
        dim = <int32_t>u32(block + FP_TENSOR_HEADER_DIMS_OFFSET + 4 * i)
        if dim < 0:
            return NEGATIVE_DIM
        out.shape[i] = dim
        empty = empty or dim == 0

    # From the innermost dimension outwards; a dimension of 0 counts as 1, as in numpy's strides.
    size = element
    for k in range(out.ndims):
        i = out.ndims - 1 - k if out.major_order == FP_MAJOR_ORDER_ROW else k
        out.strides[i] = size
        if fp_times(size, out.shape[i] if out.shape[i] > 0 else 1, &size):
            return TOO_LARGE
    for i in range(out.ndims):
        stride = <int32_t>u32(block + FP_TENSOR_HEADER_STRIDES_OFFSET + 4 * i)
        if stride < 0:
            return NEGATIVE_STRIDE
        if stride > 0:
            declared = True
            out.strides[i] = stride
    if declared and out.dtype == FP_DTYPE_BIT:
        return BIT_STRIDES

    # `span` is what the dimensions so far reach over: the next one must step beyond it. It saturates, since
    # no stride reaches 2^63.
    span = <uint64_t>element
    for k in range(out.ndims):
        i = out.ndims - 1 - k if out.major_order == FP_MAJOR_ORDER_ROW else k
        if inner >= 0 and out.strides[i] < out.strides[inner]:
            return STRIDE_ORDER
        if <uint64_t>out.strides[i] < span:
            return STRIDE_OVERLAP
        inner = i
        if out.shape[i] > 1:
            step = <uint64_t>(out.shape[i] - 1) * <uint64_t>out.strides[i]
            span = span + step if span + step >= span else <uint64_t>-1

    if out.progress_unit != FP_PROGRESS_UNIT_NONE:
        axis = out.progress_unit - FP_PROGRESS_UNIT_ROWS
        if axis >= out.ndims:
            return PROGRESS_AXIS
        if out.progress_stride_bytes == 0:
            return PROGRESS_STRIDE_ZERO
        step = out.progress_stride_bytes
        if out.dtype == FP_DTYPE_BIT:
            step *= 8
        if <uint64_t>out.strides[axis] != step:
            return PROGRESS_STRIDE

    if out.dtype == FP_DTYPE_BIT:
        span = (span + 7) // 8
        size = (size + 7) // 8 if size <= (<int64_t>1 << 62) else size // 8 + 1
    out.extent = 0 if empty else span
    out.nbytes = 0 if empty else <uint64_t>size
    return EXTENT if out.extent > <uint64_t>0xFFFFFFFF else ACCEPTED


@cython.final
cdef class Layout:
    """A tensor layout from the 192 bytes of its encoded TensorHeader, held to the same rules as a received one.

    Raises TensorError naming the broken rule: what a writer can commit, a reader accepts.
    """

    def __init__(self, header):
        cdef const unsigned char[::1] view = header
        if view.shape[0] != FP_TENSOR_HEADER_BYTES:
            raise TensorError(f"a tensor header has {FP_TENSOR_HEADER_BYTES} bytes, not {view.shape[0]}")
        memcpy(self.raw, &view[0], FP_TENSOR_HEADER_BYTES)
        cdef int reason = parse_tensor(self.raw, &self.tensor)
        if reason:
            raise TensorError(f"readers would drop this tensor header: {REASON[reason].name}")

    @property
    def header(self):
        """The encoded TensorHeader with its message header."""
        return self.raw[:FP_TENSOR_HEADER_BYTES]

    @property
    def dtype(self):
        """The number of the wire's Dtype."""
        return self.tensor.dtype

    @property
    def order(self):
        """The number of the wire's MajorOrder."""
        return self.tensor.major_order

    @property
    def shape(self):
        if self._shape is None:
            self._shape = tuple([self.tensor.shape[i] for i in range(self.tensor.ndims)])
        return self._shape

    @property
    def strides(self):
        """The effective strides in bytes; empty for BIT, whose elements have none."""
        if self._strides is None:
            if self.tensor.dtype == FP_DTYPE_BIT:
                self._strides = ()
            else:
                self._strides = tuple([self.tensor.strides[i] for i in range(self.tensor.ndims)])
        return self._strides

    cdef object element(self):
        """numpy's dtype of what lies in memory; of BIT that is its packed bytes."""
        if self._element is None:
            self._element = uint8 if self.tensor.dtype == FP_DTYPE_BIT else <object>NUMPY[self.tensor.dtype]
        return self._element

    @property
    def progress_unit(self):
        """The number of the wire's ProgressUnit."""
        return self.tensor.progress_unit

    @property
    def progress_stride_bytes(self):
        return self.tensor.progress_stride_bytes

    @property
    def nbytes(self):
        """Bytes of all elements, without the gaps of strides."""
        return self.tensor.nbytes

    @property
    def extent(self):
        """Bytes from the first to the end of the last element."""
        return self.tensor.extent

    def __repr__(self):
        return f"Layout(dtype={self.dtype}, order={self.order}, shape={self.shape}, strides={self.strides})"


@cython.final
@cython.freelist(64)
cdef class CheckedSlot:
    """A slot whose header broke no rule and was whole when read; the payload is proven by `RingReader.still`."""

    def __init__(self):
        raise TypeError("made by RingReader.check only")

    @property
    def seq(self):
        return self.slot.seq

    @property
    def pool_id(self):
        return self.slot.pool_id

    @property
    def payload_slot(self):
        return self.slot.payload_slot

    @property
    def values_len_bytes(self):
        return self.slot.values_len_bytes

    @property
    def timestamp_ns(self):
        return self.slot.timestamp_ns

    @property
    def meta_version(self):
        return self.slot.meta_version

    def __repr__(self):
        return f"CheckedSlot(seq={self.seq}, pool_id={self.pool_id}, {self.layout!r})"


cdef class Ring:
    """A header ring and its pools, held by their buffers and checked once; the ground of writer and reader.

    `pools` have `pool_id`, `stride_bytes`, `nslots` and `buffer`, as `framepool.shm.pool.Pool`. Every buffer starts
    with its superblock and stays exported until `close`: a mapping cannot go away under the pointers.
    """

    def __cinit__(self, header, nslots, pools, *args, **kwargs):
        cdef int flags = PyBUF_SIMPLE
        cdef bint writable = isinstance(self, RingWriter)
        cdef Py_buffer *view
        cdef int32_t i
        self.closed = True
        if writable:
            flags |= PyBUF_WRITABLE
        if not 1 <= nslots <= 1 << 31 or nslots & (nslots - 1):
            raise RegionError(f"{nslots} slots: a ring and its pools have a power of two of them")
        pools = sorted(pools, key=lambda pool: (pool.stride_bytes, pool.pool_id))
        if len({pool.pool_id for pool in pools}) != len(pools):
            raise RegionError("a pool id comes twice")
        self.mask = nslots - 1
        self.pools = <PoolMap *>PyMem_Calloc(len(pools) + 1, sizeof(PoolMap))
        self.views = <Py_buffer *>PyMem_Calloc(len(pools) + 1, sizeof(Py_buffer))
        if self.pools == NULL or self.views == NULL:
            raise MemoryError
        arrays = []
        for i, buffer in enumerate([header, *(pool.buffer for pool in pools)]):
            view = &self.views[i]
            PyObject_GetBuffer(buffer, view, flags)
            self.nviews += 1
            needed = FP_SUPERBLOCK_SIZE + nslots * (pools[i - 1].stride_bytes if i else FP_HEADER_SLOT_BYTES)
            if view.len < needed:
                raise RegionSizeError(f"{nslots} slots need {needed} bytes, not {view.len}")
            if <size_t>view.buf % 8:
                raise RegionError("the region is not aligned to 8 bytes: map it, or use a numpy buffer")
            if i == 0:
                self.slots = <unsigned char *>view.buf + FP_SUPERBLOCK_SIZE
                continue
            pool = pools[i - 1]
            if pool.nslots != nslots:
                raise RegionError(f"pool {pool.pool_id} has {pool.nslots} slots, the header ring {nslots} (Wire 15.5)")
            self.pools[i - 1].base = <unsigned char *>view.buf + FP_SUPERBLOCK_SIZE
            self.pools[i - 1].stride_bytes = pool.stride_bytes
            self.pools[i - 1].pool_id = pool.pool_id
            # frombuffer keeps an export of the buffer alive in every view made of it; ndarray(buffer=) does not.
            raw = memoryview(buffer)
            arrays.append(from_buffer(raw if writable else raw.toreadonly(), uint8))
        self.npools = len(pools)
        self.arrays = tuple(arrays)
        self.closed = False

    def __dealloc__(self):
        self.release()
        PyMem_Free(self.pools)
        PyMem_Free(self.views)

    @property
    def nslots(self):
        return <uint64_t>self.mask + 1

    def close(self):
        """Gives the buffers back; views handed out keep theirs. A copy under way in another thread ends first."""
        self.closed = True
        if self.busy == 0:
            self.release()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    cdef int open_(self) except -1:
        if self.closed:
            raise ValueError("the ring is closed")
        return 0

    cdef void release(self) noexcept:
        self.drop_spares()
        self.arrays = None
        while self.nviews > 0:
            self.nviews -= 1
            PyBuffer_Release(&self.views[self.nviews])

    cdef void leave(self) noexcept:
        self.busy -= 1
        if self.closed and self.busy == 0:
            self.release()

    cdef object array_of(self, const unsigned char *start, int32_t pool, Layout layout, bint writable):
        """The tensor at `start` as a view that keeps its pool's buffer exported for as long as it lives. An array that
        was handed out before, that nobody has any more and that is as it was made, is pointed there and serves again:
        a new one costs as much as the rest of a frame."""
        cdef Spare *spare
        cdef object array
        cdef int i
        for i in range(SPARES):
            spare = &self.spares[i]
            if spare.layout == <PyObject *>layout and spare.pool == pool and fp_array_free(
                    spare.array, <PyObject *>layout._element, spare.flags, layout.tensor.ndims, layout.tensor.shape,
                    layout.tensor.strides):
                fp_array_point(spare.array, start)
                return <object>spare.array
        array = self.new_array_of(start, pool, layout, writable)
        if layout.tensor.dtype != FP_DTYPE_BIT:
            self.keep_spare(array, pool, layout)
        return array

    cdef void keep_spare(self, object array, int32_t pool, Layout layout):
        cdef Spare *spare = &self.spares[self.next_spare]
        cdef Spare before = spare[0]
        self.next_spare = (self.next_spare + 1) % SPARES
        Py_INCREF(array)
        Py_INCREF(layout)
        spare.array = <PyObject *>array
        spare.layout = <PyObject *>layout
        spare.pool = pool
        spare.flags = cnp.PyArray_FLAGS(<cnp.ndarray>array)
        Py_XDECREF(before.array)  # last: whoever watches it may be called, and come back here
        Py_XDECREF(before.layout)

    cdef void drop_spares(self) noexcept:
        cdef Spare spare
        cdef int i
        for i in range(SPARES):
            spare = self.spares[i]
            self.spares[i].array = self.spares[i].layout = NULL
            Py_XDECREF(spare.array)
            Py_XDECREF(spare.layout)

    cdef object new_array_of(self, const unsigned char *start, int32_t pool, Layout layout, bint writable):
        cdef object base = self.arrays[pool]
        cdef int64_t *strides = layout.tensor.strides
        cdef int64_t *shape = layout.tensor.shape
        cdef int64_t packed = <int64_t>layout.tensor.extent
        cdef int ndims = layout.tensor.ndims
        cdef object dtype = layout.element()
        if layout.tensor.dtype == FP_DTYPE_BIT:
            ndims = 1
            shape = &packed
            strides = NULL
        Py_INCREF(dtype)
        view = PyArray_NewFromDescr(
            &PyArray_Type, <PyArray_Descr *>dtype, ndims, <cnp.npy_intp *>shape, <cnp.npy_intp *>strides,
            <void *>start, cnp.NPY_ARRAY_WRITEABLE if writable else 0, NULL)
        cnp.set_array_base(<cnp.ndarray>view, base)
        return view


cdef object shaped(Layout layout, buffer, Py_ssize_t offset):
    """The tensor in `buffer`: BIT as its packed bytes, all others in their shape."""
    if layout.tensor.dtype == FP_DTYPE_BIT:
        return new_array((layout.tensor.extent,), uint8, buffer, offset)
    return new_array(layout.shape, layout.element(), buffer, offset, layout.strides)


@cython.final
cdef class RingWriter(Ring):
    """Claims, fills and commits the slots of one producer. Sequences rise; several claims may be open at once.

    `visibility`, if given, is called with the payload before each commit store: where DMA is not coherent it
    flushes what the platform needs flushed (Wire 8.3). If it raises, the slot stays uncommitted.
    """

    def __cinit__(self, header, nslots, pools, visibility=None):
        self.claims = <Claim *>PyMem_Calloc(nslots, sizeof(Claim))
        if self.claims == NULL:
            raise MemoryError
        self.visibility_ = visibility

    def __dealloc__(self):
        PyMem_Free(self.claims)

    cdef int32_t fit(self, uint64_t nbytes) noexcept nogil:
        """The index of the smallest pool that holds `nbytes`, or -1."""
        cdef int32_t i
        for i in range(self.npools):
            if self.pools[i].stride_bytes >= nbytes:
                return i
        return -1

    cdef void begin(self, uint64_t seq, uint32_t nbytes, int32_t pool) noexcept nogil:
        """Publish step 1: the in-progress word, ordered before every store to the payload."""
        cdef uint32_t index = <uint32_t>seq & self.mask
        self.claims[index] = Claim(seq, nbytes, pool, True)
        self.floor = seq + 1
        fp_slot_begin(self.slots + <size_t>index * FP_HEADER_SLOT_BYTES, seq)

    cdef void fill_header(self, const Claim *claim, const unsigned char *tensor_header,
                          uint64_t timestamp_ns, uint32_t meta_version) noexcept nogil:
        """Publish step 3: every byte of the slot but `seq_commit`, whatever it held.

        A steady camera has the same TensorHeader in each slot for ever: then it is left alone, and readers have it in
        their caches from the last time."""
        cdef unsigned char image[FP_TENSOR_HEADER_OFFSET]
        cdef uint32_t index = <uint32_t>claim.seq & self.mask
        cdef uint32_t length = FP_TENSOR_HEADER_BYTES
        cdef unsigned char *slot = self.slots + <size_t>index * FP_HEADER_SLOT_BYTES
        memset(image, 0, FP_HEADER_BYTES_OFFSET)
        memcpy(image + FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET, &claim.nbytes, 4)
        memcpy(image + FP_SLOT_HEADER_PAYLOAD_SLOT_OFFSET, &index, 4)
        memcpy(image + FP_SLOT_HEADER_POOL_ID_OFFSET, &self.pools[claim.pool].pool_id, 2)
        memcpy(image + FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET, &timestamp_ns, 8)
        memcpy(image + FP_SLOT_HEADER_META_VERSION_OFFSET, &meta_version, 4)
        memcpy(image + FP_HEADER_BYTES_OFFSET, &length, 4)
        memcpy(slot + FP_SLOT_HEADER_SEQ_COMMIT_SIZE, image + FP_SLOT_HEADER_SEQ_COMMIT_SIZE,
               FP_TENSOR_HEADER_OFFSET - FP_SLOT_HEADER_SEQ_COMMIT_SIZE)
        if memcmp(slot + FP_TENSOR_HEADER_OFFSET, tensor_header, FP_TENSOR_HEADER_BYTES):
            memcpy(slot + FP_TENSOR_HEADER_OFFSET, tensor_header, FP_TENSOR_HEADER_BYTES)

    cdef void finish(self, Claim *claim) noexcept nogil:
        """Publish step 4: the committed word, ordered after every store to payload and header."""
        cdef uint32_t index = <uint32_t>claim.seq & self.mask
        claim.open = False
        fp_slot_commit(self.slots + <size_t>index * FP_HEADER_SLOT_BYTES, claim.seq)

    cdef unsigned char *payload_of(self, const Claim *claim) noexcept nogil:
        cdef PoolMap *pool = &self.pools[claim.pool]
        return pool.base + <size_t>(<uint32_t>claim.seq & self.mask) * pool.stride_bytes

    cdef Claim *claimable(self, seq, nbytes) except NULL:
        """Begins the claim of `seq`, or raises with the slot untouched."""
        cdef int32_t pool
        cdef Claim *claim
        self.open_()
        if not self.floor <= seq < 1 << 63:
            raise SequenceError(f"sequence {seq} is out of turn: the next is {self.floor} or higher")
        claim = &self.claims[<uint32_t><uint64_t>seq & self.mask]
        if claim.open:
            raise SequenceError(f"slot of sequence {seq} is still claimed by {claim.seq}: commit or abandon it first")
        if nbytes < 0:
            raise ValueError(f"a payload of {nbytes} bytes")
        pool = self.fit(nbytes) if nbytes <= 0xFFFFFFFF else -1
        if pool < 0:
            largest = self.pools[self.npools - 1].stride_bytes if self.npools else 0
            raise NoPoolFits(
                f"{nbytes} bytes do not fit the largest pool stride of {largest}; configure a larger pool"
            )
        self.begin(seq, nbytes, pool)
        return claim

    cdef Claim *claim_slot(self, uint64_t seq, uint64_t nbytes) except NULL:
        """`claimable` for a caller in C; what it refuses is refused there, with words."""
        cdef Claim *claim = &self.claims[<uint32_t>seq & self.mask]
        cdef int32_t pool = self.fit(nbytes)
        if self.closed or pool < 0 or seq < self.floor or seq >> 63 or claim.open:
            return self.claimable(seq, nbytes)
        self.begin(seq, <uint32_t>nbytes, pool)
        return claim

    cdef Claim *claimed(self, uint64_t seq) except NULL:
        cdef Claim *claim = &self.claims[<uint32_t>seq & self.mask]
        self.open_()
        if not claim.open or claim.seq != seq:
            raise SequenceError(f"sequence {seq} is not claimed")
        return claim

    cdef Claim *committable(self, uint64_t seq, Layout layout) except NULL:
        cdef Claim *claim = self.claimed(seq)
        if layout.tensor.extent > claim.nbytes:
            raise TensorError(f"the tensor needs {layout.tensor.extent} bytes, the claim has {claim.nbytes}")
        return claim

    def claim(self, seq, nbytes):
        """Takes the slot of `seq` for a payload of `nbytes`; returns the pool id. Readers see it as in progress.

        Raises NoPoolFits or SequenceError with the slot untouched. Never waits.
        """
        return self.pools[self.claimable(seq, nbytes).pool].pool_id

    def payload(self, uint64_t seq):
        """The claimed payload bytes, writable, in shared memory."""
        cdef Claim *claim = self.claimed(seq)
        cdef Py_ssize_t offset = FP_SUPERBLOCK_SIZE + (self.payload_of(claim) - self.pools[claim.pool].base)
        return memoryview(self.arrays[claim.pool])[offset:offset + claim.nbytes]

    def array(self, uint64_t seq, Layout layout not None):
        """The claimed payload as a writable array of `layout` (BIT: its packed bytes)."""
        cdef Claim *claim = self.committable(seq, layout)
        return self.array_of(self.payload_of(claim), claim.pool, layout, True)

    def write_header(self, uint64_t seq, Layout layout not None, uint64_t timestamp_ns=0, uint32_t meta_version=0):
        """Writes the header of a claimed slot without committing it, for progress (decisions.md #29)."""
        self.fill_header(self.committable(seq, layout), layout.raw, timestamp_ns, meta_version)

    def commit(self, uint64_t seq, Layout layout not None, uint64_t timestamp_ns=0, uint32_t meta_version=0):
        """Writes the header and commits: from here on readers accept the frame."""
        cdef Claim *claim = self.committable(seq, layout)
        self.fill_header(claim, layout.raw, timestamp_ns, meta_version)
        if self.visibility_ is not None:
            self.visibility_(self.payload(seq))
            claim = self.claimed(seq)
        self.finish(claim)

    def abandon(self, uint64_t seq):
        """Gives a claim up: the slot stays in progress, which readers drop, until a later frame takes it."""
        self.claimed(seq).open = False

    def publish(self, seq, data, Layout layout not None, uint64_t timestamp_ns=0, uint32_t meta_version=0):
        """Claim, one copy of `data` and commit; returns the pool id.

        `data` is any contiguous buffer of exactly the layout's extent, taken in the order of its memory. A long copy
        runs without the interpreter lock.
        """
        cdef Py_buffer source
        cdef Claim *claim
        cdef unsigned char *target
        PyObject_GetBuffer(data, &source, PyBUF_ANY_CONTIGUOUS)
        try:
            if <uint64_t>source.len != layout.tensor.extent:
                raise TensorError(f"{source.len} bytes of data for a tensor of {layout.tensor.extent}")
            claim = self.claimable(seq, source.len)
            target = self.payload_of(claim)
            if source.len < RELEASE_FROM:
                memcpy(target, source.buf, source.len)
            else:
                self.busy += 1
                with nogil:
                    memcpy(target, source.buf, source.len)
                self.leave()
        finally:
            PyBuffer_Release(&source)
        pool_id = self.pools[claim.pool].pool_id
        try:
            self.commit(claim.seq, layout, timestamp_ns, meta_version)
        except BaseException:
            claim.open = False
            raise
        return pool_id


@cython.final
cdef class RingReader(Ring):
    """Checks and reads slots. It never waits: what is not there, whole and well-formed is a drop (Wire 15.21)."""

    cdef int check_header(self, uint64_t seq, unsigned char *copy, Slot *out) noexcept nogil:
        """Copies the slot of `seq` and validates all of the copy but its TensorHeader; the broken rule or 0."""
        cdef uint32_t index = <uint32_t>seq & self.mask
        cdef const unsigned char *slot = self.slots + <size_t>index * FP_HEADER_SLOT_BYTES
        cdef uint64_t word = fp_slot_look(slot)
        cdef int32_t i
        if not word & 1:
            return NOT_COMMITTED
        if word >> 1 != seq:
            return WRONG_SEQUENCE
        memcpy(copy, slot, FP_HEADER_SLOT_BYTES)
        if fp_slot_look_again(slot) != word:
            return OVERWRITTEN
        out.seq = seq
        out.values_len_bytes = u32(copy + FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET)
        out.payload_slot = u32(copy + FP_SLOT_HEADER_PAYLOAD_SLOT_OFFSET)
        out.pool_id = u16(copy + FP_SLOT_HEADER_POOL_ID_OFFSET)
        out.timestamp_ns = u64(copy + FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET)
        out.meta_version = u32(copy + FP_SLOT_HEADER_META_VERSION_OFFSET)
        out.pool = -1
        if u32(copy + FP_SLOT_HEADER_PAYLOAD_OFFSET_OFFSET):
            return PAYLOAD_OFFSET
        if out.payload_slot > self.mask:
            return PAYLOAD_SLOT_RANGE
        if out.payload_slot != index:
            return PAYLOAD_SLOT
        if out.values_len_bytes:
            for i in range(self.npools):
                if self.pools[i].pool_id == out.pool_id:
                    out.pool = i
                    break
            else:
                return UNKNOWN_POOL
            if out.values_len_bytes > self.pools[out.pool].stride_bytes:
                return VALUES_LENGTH
        if u32(copy + FP_HEADER_BYTES_OFFSET) != FP_TENSOR_HEADER_BYTES:
            return HEADER_LENGTH
        return ACCEPTED

    cdef bint unchanged(self, uint64_t seq) noexcept nogil:
        """The second check, ordered after every load of the payload."""
        cdef uint64_t word = fp_slot_look_again(self.slots + <size_t>(<uint32_t>seq & self.mask) * FP_HEADER_SLOT_BYTES)
        return word & 1 and word >> 1 == seq

    def check(self, uint64_t seq):
        """The slot of frame `seq` if its header is committed, whole and breaks no rule, else the DropReason.

        What the slot leads to is proven only by `still`, or by `copy`.
        """
        cdef int reason = ACCEPTED
        checked = self.check_slot(seq, &reason)
        return REASON[reason] if reason else checked

    cdef CheckedSlot check_slot(self, uint64_t seq, int *reason):
        """The checked slot, or None and the number of the broken rule: no object is made for a drop."""
        cdef unsigned char copy[FP_HEADER_SLOT_BYTES]
        cdef Slot slot
        cdef Tensor tensor
        cdef CheckedSlot checked
        cdef Layout layout = self.last
        self.open_()
        reason[0] = self.check_header(seq, copy, &slot)
        if reason[0]:
            return None
        # A steady camera sends the same 192 bytes for ever: they are parsed once.
        if layout is None or memcmp(layout.raw, copy + FP_TENSOR_HEADER_OFFSET, FP_TENSOR_HEADER_BYTES):
            reason[0] = parse_tensor(copy + FP_TENSOR_HEADER_OFFSET, &tensor)
            if reason[0]:
                return None
            layout = Layout.__new__(Layout)
            memcpy(layout.raw, copy + FP_TENSOR_HEADER_OFFSET, FP_TENSOR_HEADER_BYTES)
            layout.tensor = tensor
            self.last = layout
        if layout.tensor.extent > slot.values_len_bytes:
            reason[0] = EXTENT
            return None
        checked = CheckedSlot.__new__(CheckedSlot)
        checked.slot = slot
        checked.layout = layout
        return checked

    def word(self, uint32_t index):
        """`seq_commit` of a slot, for whoever looks for the newest frame or draws the ring."""
        self.open_()
        if index > self.mask:
            raise IndexError(f"slot {index} of a ring of {self.nslots}")
        return fp_slot_look(self.slots + <size_t>index * FP_HEADER_SLOT_BYTES)

    def still(self, uint64_t seq):
        """Whether the slot still holds frame `seq`, committed: all that was read of it until now is whole."""
        self.open_()
        return self.unchanged(seq)

    def array(self, CheckedSlot checked not None):
        """The payload as a read-only array in shared memory; what it shows may be used once `still` says so.

        BIT comes as its packed bytes. A frame without payload touches no pool.
        """
        return self.view_of(checked)

    cdef object view_of(self, CheckedSlot checked):
        cdef const unsigned char *payload = self.payload_of(checked)
        if checked.slot.pool < 0:
            return shaped(checked.layout, b"", 0)
        return self.array_of(payload, checked.slot.pool, checked.layout, False)

    def copy(self, CheckedSlot checked not None):
        """A private copy of the payload that is known to be whole, else OVERWRITTEN. A long copy frees the lock."""
        cdef const unsigned char *source = self.payload_of(checked)
        cdef Layout layout = checked.layout
        cdef size_t nbytes = layout.tensor.extent
        cdef unsigned char *target
        cdef bint whole
        private = PyByteArray_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
        target = private
        if nbytes < RELEASE_FROM:
            memcpy(target, source, nbytes)
            whole = self.unchanged(checked.slot.seq)
        else:
            self.busy += 1
            with nogil:
                memcpy(target, source, nbytes)
                whole = self.unchanged(checked.slot.seq)
            self.leave()
        return shaped(layout, private, 0) if whole else REASON[OVERWRITTEN]

    def read(self, uint64_t seq):
        """`check` and `copy` in one: the checked slot with its private copy, else the DropReason."""
        checked = self.check(seq)
        if not isinstance(checked, CheckedSlot):
            return checked
        array = self.copy(checked)
        return array if array is REASON[OVERWRITTEN] else (checked, array)

    cdef const unsigned char *payload_of(self, CheckedSlot checked) except NULL:
        """Where the payload of a slot starts; ValueError for a slot that another reader checked."""
        cdef int32_t pool = checked.slot.pool
        self.open_()
        if checked.layout is None:
            raise ValueError("this slot was not checked")
        if pool < 0:
            return self.slots  # any address: there is nothing to read
        if (pool >= self.npools or checked.slot.payload_slot > self.mask
                or checked.layout.tensor.extent > self.pools[pool].stride_bytes):
            raise ValueError("this slot was checked by another reader")
        return self.pools[pool].base + <size_t>checked.slot.payload_slot * self.pools[pool].stride_bytes
