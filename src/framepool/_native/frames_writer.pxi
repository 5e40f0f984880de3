# The producer's side.


@cython.final
cdef class FrameWriter:
    """Puts frames of one epoch into their slots and tells of them. One thread at a time.

    `publish` and `commit` return what became of the frame: a position or a negative `Outcome`, and it is committed
    in either case; EXPIRED, and its slot was not touched; or ABANDONED, and its slot stays in progress, which uses
    the sequence number up. The lease that is asked before the claim and again before the commit is `deadline_ns`
    and, after `follow`, the last keepalive that left. `realtime` stamps with CLOCK_REALTIME for the clock domain of
    that name.
    """

    cdef readonly AnyPublication publication
    cdef readonly RingWriter ring
    cdef readonly uint32_t stream_id
    cdef readonly uint64_t epoch
    cdef Heartbeat heartbeat
    cdef int64_t lifetime_ns
    cdef int64_t since_ns
    cdef int64_t deadline
    cdef clockid_t clock
    cdef uint8_t message[MESSAGE_BYTES]
    cdef readonly uint64_t committed
    cdef readonly uint64_t told
    cdef readonly uint64_t expired
    cdef readonly uint64_t abandoned

    def __cinit__(
        self,
        AnyPublication publication not None,
        RingWriter ring not None,
        uint32_t stream_id,
        uint64_t epoch,
        *,
        bint realtime=False,
    ):
        self.publication = publication
        self.ring = ring
        self.stream_id = stream_id
        self.epoch = epoch
        self.deadline = NEVER
        self.clock = CLOCK_REALTIME if realtime else CLOCK_MONOTONIC
        cdef uint8_t *block = self.message + FP_MESSAGE_HEADER_BYTES
        memcpy(self.message, HEADER, FP_MESSAGE_HEADER_BYTES)
        memcpy(block + FP_FRAME_DESCRIPTOR_STREAM_ID_OFFSET, &stream_id, 4)
        memcpy(block + FP_FRAME_DESCRIPTOR_EPOCH_OFFSET, &epoch, 8)

    @property
    def deadline_ns(self):
        """CLOCK_MONOTONIC from which on nothing is written; None: never."""
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
        cdef int64_t now, last
        if self.deadline == NEVER and self.heartbeat is None:
            return False
        now = fp_clock_ns(CLOCK_MONOTONIC)
        if now >= self.deadline:
            return True
        if self.heartbeat is None:
            return False
        last = self.heartbeat.last_sent()
        return now - (last if last > self.since_ns else self.since_ns) >= self.lifetime_ns

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

    cdef uint64_t stamp(self, timestamp_ns) except? 0:
        if timestamp_ns is None:
            return <uint64_t>fp_clock_ns(self.clock)
        return timestamp_ns

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
        if nbytes < RELEASE_FROM:
            memcpy(target, source, nbytes)
        else:
            self.ring.busy += 1
            with nogil:
                memcpy(target, source, nbytes)
            self.ring.leave()

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
        self.abandoned += 1

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
            return C_ABANDONED
        try:
            self.seal(seq, layout, timestamp_ns, meta_version)
        except BaseException:
            self.drop(claim, seq)
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
        return outcome

    def statistics(self):
        """Frames committed, and of those told of; frames not written for want of a lease, before and after the
        claim, the latter with those whose commit raised."""
        return {
            "committed": self.committed,
            "told": self.told,
            "expired": self.expired,
            "abandoned": self.abandoned,
        }
