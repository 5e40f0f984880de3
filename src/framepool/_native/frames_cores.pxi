# What a producer and a consumer do for every frame, while nothing changed around them.


@cython.final
cdef class Changes:
    """How often something changed. Who looks often compares the count, which is cheap, instead of the thing."""

    cdef public int64_t count


cdef class Attendant:
    """Who may have the interpreter all the time. Then it takes turns of the control plane between two frames, whose own
    thread would have to take the interpreter from it (`Ears.offer`)."""

    cdef public Ears _ears

    cdef inline int attend(self) except -1:
        if self._ears is not None and fp_turn_attend(&self._ears.turn):
            self._ears.take_turn()
        return 0

    def _attend(self):
        """The same for the long way of a frame."""
        self.attend()


cdef class ProducerCore(Attendant):
    """The short way of a frame into a stream: that of a producer whose writer, metadata version and readers are those
    of its last look, which `_changes` tells. Everything else goes the long way, by `_publish` and `_claim` of the
    class that is made from this one."""

    cdef public FrameWriter _frames
    cdef public Changes _changes
    cdef public int64_t _seen
    """The count of `_changes` at the last look; another one: look again."""
    cdef public bint _direct
    """Whether a descriptor is all there is to tell of a frame, stamped by the clock that C reads."""
    cdef public uint32_t _meta_version
    cdef public bint _publish_timestamps
    cdef public object _own
    cdef public type _slot_kind
    cdef object claimed_shape
    cdef object claimed_dtype
    cdef object claimed_order
    cdef Layout claimed_layout

    def __cinit__(self, *_, **__):
        self._seen = -1

    cdef bint unchanged(self) noexcept:
        return self._changes.count == self._seen and self._direct

    def publish(self, array, *, timestamp_ns=None, meta_version=None, trace_id=None, parents=()):
        cdef int64_t seq
        if parents is not NOTHING or meta_version is not None or not self.unchanged():
            return self._publish(array, timestamp_ns, meta_version, trace_id, parents)
        try:
            seq = self._frames.put_next(
                array, timestamp_ns, self._meta_version, 0 if trace_id is None else trace_id, self._publish_timestamps)
        except NoPoolFits:
            self._own["no pool fits"] += 1
            return None
        self.attend()
        return seq if seq >= 0 else None

    def claim(
        self, shape, dtype=np.uint8, *, order="C", progress=None, timestamp_ns=None, meta_version=None, trace_id=None,
        parents=(),
    ):
        cdef ClaimedSlot slot
        if (
            dtype is self.claimed_dtype
            and order is self.claimed_order
            and progress is None
            and meta_version is None
            and trace_id is None
            and parents is NOTHING
            and (PyTuple_CheckExact(shape) or PyLong_CheckExact(shape))
            and self.unchanged()
            and shape == self.claimed_shape
        ):
            try:
                slot = self._frames.claim_next(self._slot_kind, self.claimed_layout, timestamp_ns, self._meta_version)
            except NoPoolFits:
                self._own["no pool fits"] += 1
                raise
            if slot is None:
                raise self._no_lease()
            slot._producer = self
            return slot
        return self._claim(shape, dtype, order, progress, timestamp_ns, meta_version, trace_id, parents)

    def _claims(self, shape, dtype, order, Layout layout not None):
        """How a tensor of this kind is laid out, for the next claim of one."""
        self.claimed_shape = shape
        self.claimed_dtype = dtype
        self.claimed_order = order
        self.claimed_layout = layout


cdef class ConsumerCore(Attendant):
    """The short way of frames out of a stream: that of a consumer that takes whatever comes. Everything else goes the
    long way, by `_poll` of the class that is made from this one."""

    cdef public FrameReader _frames
    cdef public Changes _changes
    cdef public int64_t _seen
    """The count of `_changes` at the last look; another one: look again."""
    cdef public bint _direct
    """Whether frames are handed over as they come."""

    def __cinit__(self, *_, **__):
        self._seen = -1

    def poll(self, Py_ssize_t limit=256):
        cdef list frames
        if self._changes.count != self._seen or not self._direct:
            return self._poll(limit)
        try:
            frames = self._frames.take_frames(limit)
        except TransportError as error:
            return self._silent(error)
        if frames is None:  # the lease is over, as far as can be seen here
            return self._poll(limit)
        if not frames:
            self.attend()
        return self._sift(frames) if self._frames.stopped else frames
