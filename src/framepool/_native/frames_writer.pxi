# The producer's side.


@cython.final
cdef class FrameWriter(UnderLease):
    """Puts frames of one epoch into their slots and tells of them. One thread at a time.

    `publish` and `commit` return what became of the frame: a position or a negative `Outcome`, and it is committed
    in either case; EXPIRED, and its slot was not touched; or ABANDONED, and its slot stays in progress, which uses
    the sequence number up. The lease that is asked before the claim and again before the commit is `deadline_ns`
    and, after `follow`, the last keepalive that left. `realtime` stamps with CLOCK_REALTIME for the clock domain of
    that name.
    """

    cdef readonly AnyPublication publication
    cdef readonly RingWriter ring
    cdef readonly CopyChoice copies
    cdef readonly uint32_t stream_id
    cdef readonly uint64_t epoch
    cdef public uint64_t next_seq
    cdef object describe
    cdef clockid_t clock
    cdef uint8_t message[MESSAGE_BYTES]
    cdef Layout last
    cdef PyObject *last_dtype  # borrowed: `last_kept` holds it
    cdef object last_kept
    cdef int last_ndim
    cdef Py_ssize_t last_shape[8]
    cdef bint last_column
    cdef readonly uint64_t committed
    cdef readonly uint64_t told
    cdef readonly uint64_t expired
    cdef readonly uint64_t abandoned
    cdef readonly uint64_t failed
    cdef readonly uint64_t unheard
    cdef readonly uint64_t untold

    def __cinit__(
        self,
        AnyPublication publication not None,
        RingWriter ring not None,
        uint32_t stream_id,
        uint64_t epoch,
        *,
        bint realtime=False,
        describe=None,
    ):
        self.publication = publication
        self.ring = ring
        self.copies = CopyChoice(<uint64_t>ring.mask + 1)
        self.stream_id = stream_id
        self.epoch = epoch
        self.describe = describe
        self.clock = CLOCK_REALTIME if realtime else CLOCK_MONOTONIC
        cdef uint8_t *block = self.message + FP_MESSAGE_HEADER_BYTES
        memcpy(self.message, HEADER, FP_MESSAGE_HEADER_BYTES)
        memcpy(block + FP_FRAME_DESCRIPTOR_STREAM_ID_OFFSET, &stream_id, 4)
        memcpy(block + FP_FRAME_DESCRIPTOR_EPOCH_OFFSET, &epoch, 8)

    def publish(
        self,
        uint64_t seq,
        data,
        Layout layout not None,
        timestamp_ns=None,
        uint32_t meta_version=0,
        uint64_t trace_id=0,
        bint publish_timestamp=False,
    ):
        """Claim, one copy, commit and descriptor.

        `data` is a contiguous buffer of the layout's extent, whose bytes are taken as they lie, or else an array of
        the layout's shape and dtype, however it lies. `timestamp_ns` is that of the capture, None for now. Raises NoPoolFits, SequenceError
        or TensorError with the slot untouched or abandoned.
        """
        cdef Py_buffer view
        cdef cnp.ndarray array
        cdef uint64_t stamp
        cdef Claim *claim
        cdef uint64_t extent = layout.tensor.extent
        cdef bint column = layout.tensor.major_order == FP_MAJOR_ORDER_COLUMN
        self.publication.check_sender()
        if self.over():
            self.expired += 1
            return C_EXPIRED
        stamp = self.stamp(timestamp_ns)
        if cnp.PyArray_Check(data):
            array = <cnp.ndarray>data
            if <uint64_t>cnp.PyArray_NBYTES(array) == extent and (
                    cnp.PyArray_IS_F_CONTIGUOUS(array) if column else cnp.PyArray_IS_C_CONTIGUOUS(array)):
                claim = self.ring.claim_slot(seq, extent)
                self.fill(claim, cnp.PyArray_DATA(array), extent)
            else:
                self.check_array(array, layout)
                claim = self.ring.claim_slot(seq, extent)
                try:
                    cnp.PyArray_CopyInto(
                        <cnp.ndarray>self.ring.array_of(self.ring.payload_of(claim), claim.pool, layout, True), array)
                except BaseException:
                    self.drop(claim, seq)
                    self.failed += 1
                    raise
        else:
            PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
            try:
                if <uint64_t>view.len != extent:
                    raise TensorError(f"{view.len} bytes of data for a tensor of {extent}")
                claim = self.ring.claim_slot(seq, extent)
                self.fill(claim, view.buf, extent)
            finally:
                PyBuffer_Release(&view)
        return self.finish(claim, seq, layout, stamp, meta_version, trace_id, publish_timestamp)

    def put(self, data, timestamp_ns=None, uint32_t meta_version=0, trace_id=None, bint publish_timestamp=False):
        """`publish` of an array under the next sequence number, which it returns: EXPIRED or ABANDONED otherwise. What
        became of the descriptor is counted only. The layout of an array that is of another kind than the last one
        is asked of `describe`."""
        return self.put_next(data, timestamp_ns, meta_version, 0 if trace_id is None else trace_id, publish_timestamp)

    cdef int64_t put_next(
        self, data, timestamp_ns, uint32_t meta_version, uint64_t trace_id, bint publish_timestamp
    ) except? -7:
        cdef cnp.ndarray array
        cdef Claim *claim
        cdef Layout layout
        cdef uint64_t seq = self.next_seq
        cdef uint64_t stamp
        cdef int64_t now, outcome
        array = <cnp.ndarray>data if cnp.PyArray_CheckExact(data) else <cnp.ndarray>np.asarray(data)
        layout = self.layout_of(array)
        self.publication.check_sender()
        now = fp_clock_ns(CLOCK_MONOTONIC)
        if self.over_at(now):
            self.expired += 1
            return C_EXPIRED
        stamp = self.stamp_at(now, timestamp_ns)
        claim = self.ring.claim_slot(seq, layout.tensor.extent)
        self.next_seq = seq + 1
        if self.last_column or cnp.PyArray_IS_C_CONTIGUOUS(array):
            self.fill(claim, cnp.PyArray_DATA(array), layout.tensor.extent)
        else:
            try:
                cnp.PyArray_CopyInto(
                    <cnp.ndarray>self.ring.array_of(self.ring.payload_of(claim), claim.pool, layout, True), array)
            except BaseException:
                self.drop(claim, seq)
                self.failed += 1
                raise
        outcome = self.finish(claim, seq, layout, stamp, meta_version, trace_id, publish_timestamp)
        return outcome if outcome == C_ABANDONED else <int64_t>seq

    cdef Layout layout_of(self, cnp.ndarray array):
        """Of an array as it is stored: columns first if it lies so, else rows first. The last one is kept."""
        cdef int ndim = cnp.PyArray_NDIM(array)
        cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(array)
        cdef bint column = cnp.PyArray_IS_F_CONTIGUOUS(array) and not cnp.PyArray_IS_C_CONTIGUOUS(array)
        cdef int i
        cdef Layout layout
        if (
            self.last is not None
            and <PyObject *>cnp.PyArray_DESCR(array) == self.last_dtype
            and ndim == self.last_ndim
            and column == self.last_column
        ):
            for i in range(ndim):
                if shape[i] != self.last_shape[i]:
                    break
            else:
                return self.last
        layout = self.describe(array, column)
        if layout.tensor.extent != <uint64_t>cnp.PyArray_NBYTES(array) or ndim > 8:
            raise TensorError(f"an array of {array.dtype} {(<object>array).shape} does not lie as its layout says")
        self.last_kept = array.dtype
        self.last_dtype = <PyObject *>cnp.PyArray_DESCR(array)
        self.last_ndim = ndim
        self.last_column = column
        for i in range(ndim):
            self.last_shape[i] = shape[i]
        self.last = layout
        return layout

    def claim(self, type kind, Layout layout not None, timestamp_ns=None, uint32_t meta_version=0):
        """The slot of the next sequence number as a `ClaimedSlot` of that kind, whose `finish` commits it. None if the
        lease is over."""
        if not issubclass(kind, ClaimedSlot):
            raise TypeError(f"{kind.__name__} is no kind of slot")
        return self.claim_next(kind, layout, timestamp_ns, meta_version)

    cdef ClaimedSlot claim_next(self, type kind, Layout layout, timestamp_ns, uint32_t meta_version):
        cdef ClaimedSlot slot
        cdef Claim *claim
        cdef uint64_t seq = self.next_seq
        cdef int64_t now
        self.publication.check_sender()
        now = fp_clock_ns(CLOCK_MONOTONIC)
        if self.over_at(now):
            self.expired += 1
            return None
        slot = <ClaimedSlot>fp_instance(kind, NOTHING)
        slot.timestamp_ns = self.stamp_at(now, timestamp_ns)
        claim = self.ring.claim_slot(seq, layout.tensor.extent)
        self.next_seq = seq + 1
        slot.writer = self
        slot.seq = seq
        slot.layout = layout
        slot.meta_version = meta_version
        slot.array = self.ring.array_of(self.ring.payload_of(claim), claim.pool, layout, True)
        slot.open = True
        return slot

    def commit(
        self,
        uint64_t seq,
        Layout layout not None,
        timestamp_ns=None,
        uint32_t meta_version=0,
        uint64_t trace_id=0,
        bint publish_timestamp=False,
    ):
        """Commits a slot that was claimed of the ring and filled, and tells of it. Never EXPIRED: the slot was
        claimed, so a lease that is over abandons it."""
        self.publication.check_sender()
        cdef Claim *claim = self.ring.committable(seq, layout)
        return self.finish(claim, seq, layout, self.stamp(timestamp_ns), meta_version, trace_id, publish_timestamp)

    cdef int64_t commit_claimed(self, ClaimedSlot slot, uint64_t trace_id, bint publish_timestamp) except? -7:
        self.publication.check_sender()
        cdef Claim *claim = self.ring.committable(slot.seq, slot.layout)
        return self.finish(
            claim, slot.seq, slot.layout, slot.timestamp_ns, slot.meta_version, trace_id, publish_timestamp)

    cdef uint64_t stamp(self, timestamp_ns) except? 0:
        if timestamp_ns is None:
            return <uint64_t>fp_clock_ns(self.clock)
        return timestamp_ns

    cdef uint64_t stamp_at(self, int64_t now, timestamp_ns) except? 0:
        """`stamp` for who has just read CLOCK_MONOTONIC."""
        return <uint64_t>now if timestamp_ns is None and self.clock == CLOCK_MONOTONIC else self.stamp(timestamp_ns)

    cdef int check_array(self, cnp.ndarray array, Layout layout) except -1:
        """An array that lies otherwise than the layout must at least be what the layout says."""
        if (
            layout.tensor.dtype == FP_DTYPE_BIT
            or array.dtype != NUMPY[layout.tensor.dtype]
            or (<object>array).shape != layout.shape
        ):
            raise TensorError(
                f"an array of {array.dtype} {(<object>array).shape} for a tensor of {layout.shape} and "
                f"{layout.tensor.extent} bytes"
            )
        return 0

    cdef void fill(self, Claim *claim, const void *source, size_t nbytes) noexcept:
        cdef unsigned char *target = self.ring.payload_of(claim)
        cdef fp_way way
        cdef int64_t took = 0
        if nbytes < LONG_FROM:
            if nbytes < LOOP_FROM:
                memcpy(target, source, nbytes)
            else:
                fp_copy_payload(target, <const unsigned char *>source, nbytes, FP_PLAIN)
            return
        way = self.copies.next_way(nbytes, self.ring.pools[claim.pool].stride_bytes)
        if self.copies.timed:
            took = -fp_clock_ns(CLOCK_MONOTONIC)
        if nbytes < RELEASE_FROM:
            fp_copy_payload(target, <const unsigned char *>source, nbytes, way)
        else:
            self.ring.busy += 1
            with nogil:
                fp_copy_payload(target, <const unsigned char *>source, nbytes, way)
            self.ring.leave()
        if self.copies.timed:
            took += fp_clock_ns(CLOCK_MONOTONIC)
        self.copies.took(took)

    cdef int seal(self, uint64_t seq, Layout layout, uint64_t timestamp_ns, uint32_t meta_version) except -1:
        """`RingWriter.commit` for a caller in C."""
        cdef RingWriter ring = self.ring
        cdef Claim *claim = ring.committable(seq, layout)
        ring.fill_header(claim, layout.raw, timestamp_ns, meta_version)
        if ring.visibility_ is not None:
            ring.visibility_(ring.payload(seq))
            claim = ring.claimed(seq)
        ring.finish(claim)
        return 0

    cdef void drop(self, Claim *claim, uint64_t seq) noexcept:
        """Gives a claim up, as far as it is still ours."""
        if claim.open and claim.seq == seq:
            claim.open = False

    cdef int64_t finish(
        self, Claim *claim, uint64_t seq, Layout layout, uint64_t timestamp_ns, uint32_t meta_version,
        uint64_t trace_id, bint publish_timestamp,
    ) except? -7:
        """The second look at the lease, the commit, the descriptor."""
        cdef uint8_t *block = self.message + FP_MESSAGE_HEADER_BYTES
        cdef uint64_t published = NO_TIMESTAMP
        cdef uint32_t version = meta_version if meta_version else NO_META_VERSION
        cdef int64_t outcome
        if self.over():
            self.drop(claim, seq)
            self.abandoned += 1
            return C_ABANDONED
        try:
            self.seal(seq, layout, timestamp_ns, meta_version)
        except BaseException:
            self.drop(claim, seq)
            self.failed += 1
            raise
        self.committed += 1
        if publish_timestamp:
            published = <uint64_t>fp_clock_ns(self.clock)
        memcpy(block + FP_FRAME_DESCRIPTOR_SEQ_OFFSET, &seq, 8)
        memcpy(block + FP_FRAME_DESCRIPTOR_TIMESTAMP_NS_OFFSET, &published, 8)
        memcpy(block + FP_FRAME_DESCRIPTOR_META_VERSION_OFFSET, &version, 4)
        memcpy(block + FP_FRAME_DESCRIPTOR_TRACE_ID_OFFSET, &trace_id, 8)
        outcome = self.publication.tell(self.message, MESSAGE_BYTES)
        if outcome >= 0:
            self.told += 1
        elif outcome == NOT_CONNECTED:
            self.unheard += 1
        else:
            self.untold += 1
        self.expect(seq + 1, claim.pool, layout.tensor.extent)
        return outcome

    cdef void expect(self, uint64_t seq, int32_t pool, uint64_t nbytes) noexcept:
        """The slot of a frame that will come is out of the cache, its last one being a whole ring ago, and readers have
        a part of it: it is fetched now that nobody waits, and the next frame is told of sooner. Not if somebody is
        filling that slot already."""
        cdef RingWriter ring = self.ring
        cdef size_t index = <uint32_t>seq & ring.mask
        cdef unsigned char *payload = ring.pools[pool].base + index * ring.pools[pool].stride_bytes
        if ring.floor == seq and not ring.claims[index].open:
            fp_own_lines(ring.slots + index * FP_HEADER_SLOT_BYTES + FP_SLOT_HEADER_PAD_OFFSET, 1)
            fp_own_lines(payload, min(nbytes, <uint64_t>OWNED_BYTES))
            fp_expect_writes(payload, min(nbytes, <uint64_t>AHEAD_BYTES))

    def statistics(self):
        """Frames committed, and of those told of, unheard because nobody listens, and untold because Aeron did not
        take the descriptor; frames not written for want of a lease, before and after the claim, and those whose copy
        or commit raised."""
        return {
            "committed": self.committed,
            "told": self.told,
            "unheard": self.unheard,
            "untold": self.untold,
            "expired": self.expired,
            "abandoned": self.abandoned,
            "failed": self.failed,
        }


cdef class ClaimedSlot:
    """A slot that `FrameWriter.claim` gave: to be filled through `array`, then finished or abandoned. Leaving a `with`
    block commits it, and abandons it after an exception."""

    cdef readonly FrameWriter writer
    cdef readonly Layout layout
    cdef readonly object array
    """The payload in shared memory, writable."""
    cdef readonly uint64_t seq
    cdef readonly uint64_t timestamp_ns
    cdef readonly uint32_t meta_version
    cdef readonly bint open
    cdef public object _producer
    cdef public object _reporter
    cdef public object _trace

    @property
    def ring(self):
        return self.writer.ring

    @property
    def epoch(self):
        """Of the regions that it lies in."""
        return self.writer.epoch

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            self.abandon()
        elif not self.finish_short():
            self.commit()

    cdef bint finish_short(self) except -1:
        """Commits if nothing but a descriptor is to be told and nothing changed since the claim: whether it was so."""
        cdef ProducerCore producer
        if not self.open or self._reporter is not None or self._trace is not None:
            return False
        producer = <ProducerCore?>self._producer
        if not producer.unchanged() or producer._frames is not self.writer:
            return False
        self.open = False
        if self.writer.commit_claimed(self, 0, producer._publish_timestamps) == C_ABANDONED:
            raise producer._lease_ended(self.seq)
        producer.attend()
        return True

    def write_header(self):
        """What readers need before the commit (decisions.md #29)."""
        self.writer.ring.write_header(self.seq, self.layout, self.timestamp_ns, self.meta_version)

    def finish(self, uint64_t trace_id=0, bint publish_timestamp=False):
        """As `FrameWriter.commit`."""
        self.open = False
        return self.writer.commit_claimed(self, trace_id, publish_timestamp)

    def forsake(self):
        """Gives the slot up: readers see a gap. False if the ring was closed with its epoch."""
        self.open = False
        try:
            self.writer.ring.abandon(self.seq)
        except ValueError:
            return False
        return True
