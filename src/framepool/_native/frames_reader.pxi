# The consumer's side.

cdef enum:
    # What a reader's pace is counted in: even one frame becomes two, or none, only after some time.
    SIXTEENTHS = 16
    # So many frames at once are as good as any number.
    RELAXED = 4096 * SIXTEENTHS

cdef struct Descriptor:
    uint64_t seq
    uint64_t timestamp_ns
    uint64_t trace_id
    uint32_t meta_version


cdef class Taken:
    """A frame that was told of and whose slot broke no rule, with what its descriptor said.

    Inside `with` it is there in place, and leaving raises FrameOverwritten if it was not whole all the time. `late`
    is called once with the frame if it turns out so; `lookup` is for those who know what metadata is.
    """

    cdef RingReader ring
    cdef readonly CheckedSlot checked
    cdef Descriptor descriptor
    cdef readonly uint32_t stream_id
    cdef readonly uint64_t epoch
    cdef readonly object lookup
    cdef object late

    def __init__(
        self, RingReader ring not None, CheckedSlot checked not None, *,
        uint32_t stream_id, uint64_t epoch, trace_id=None, publish_timestamp_ns=None, lookup=None, late=None,
    ):
        self.ring = ring
        self.checked = checked
        self.stream_id = stream_id
        self.epoch = epoch
        self.descriptor.seq = checked.slot.seq
        self.descriptor.timestamp_ns = NO_TIMESTAMP if publish_timestamp_ns is None else publish_timestamp_ns
        self.descriptor.meta_version = NO_META_VERSION
        self.descriptor.trace_id = NO_TRACE_ID if trace_id is None else trace_id
        self.lookup = lookup
        self.late = late

    @property
    def seq(self):
        """The number of the frame in its epoch."""
        return self.descriptor.seq

    @property
    def slot(self):
        """Where it is: for those who read slots themselves, and look again afterwards whether it still was there."""
        return self.ring, self.checked

    @property
    def timestamp_ns(self):
        """When the frame was captured, on the clock of its producer."""
        return self.checked.slot.timestamp_ns

    @property
    def meta_version(self):
        """The version of the metadata that the frame refers to."""
        return self.checked.slot.meta_version

    @property
    def publish_timestamp_ns(self):
        """When the producer told of it; None where it did not say."""
        return None if self.descriptor.timestamp_ns == NO_TIMESTAMP else self.descriptor.timestamp_ns

    @property
    def told_meta_version(self):
        """The metadata version that the descriptor named; None where it named none."""
        return None if self.descriptor.meta_version == NO_META_VERSION else self.descriptor.meta_version

    @property
    def trace_id(self):
        """None for a frame that is not traced."""
        return None if self.descriptor.trace_id == NO_TRACE_ID else self.descriptor.trace_id

    def valid(self):
        """Whether the frame is still whole right now; never again once it is not."""
        return not self.ring.closed and self.ring.unchanged(self.descriptor.seq)

    def __enter__(self):
        """The frame in place, read-only."""
        if self.ring.closed:
            raise self.overwritten()
        return self.ring.view_of(self.checked)

    def __exit__(self, kind, error, trace):
        if self.ring.closed or not self.ring.unchanged(self.descriptor.seq):
            raise self.overwritten() from error

    def read(self):
        """A private copy that is known to be whole."""
        cdef object copied
        if not self.ring.closed:
            copied = self.ring.copy(self.checked)
            if not isinstance(copied, DropReason):
                return copied
        raise self.overwritten()

    cdef object overwritten(self):
        late, self.late = self.late, None
        if late is not None:
            late(self)
        return FrameOverwritten(f"frame {self.seq} of stream {self.stream_id} was overwritten before it was used")

    def __repr__(self):
        return f"{type(self).__name__}({self.checked!r})"


@cython.final
cdef class Ages:
    """How old frames are when they are taken: the buckets of `framepool.client.histogram`, filled in C."""

    cdef int64_t buckets[BUCKETS]
    cdef int64_t count
    cdef int64_t negative
    cdef int64_t least
    cdef int64_t most
    cdef int64_t sum
    cdef clockid_t clock

    def __cinit__(self, *, bint realtime=False):
        self.clock = CLOCK_REALTIME if realtime else CLOCK_MONOTONIC
        self.clear()

    cdef void clear(self) noexcept:
        memset(self.buckets, 0, sizeof(self.buckets))
        self.count = self.negative = self.most = self.sum = 0
        self.least = NEVER

    cpdef void record(self, int64_t nanos) noexcept:
        """Counts one age."""
        cdef int64_t value = nanos
        cdef int octave
        if nanos < 0:
            self.negative += 1
            return
        if value >= (<int64_t>1 << VALUE_BITS):
            value = (<int64_t>1 << VALUE_BITS) - 1
        octave = 64 - EXACT_BITS - fp_leading_zeros(<uint64_t>value | 1)
        self.buckets[value if octave <= 0 else (<int64_t>octave << BUCKET_BITS) + (value >> octave)] += 1
        self.count += 1
        self.sum += nanos
        if nanos < self.least:
            self.least = nanos
        if nanos > self.most:
            self.most = nanos

    def take(self):
        """The counts by bucket, how many, how many were negative, their sum, the least and the most; then it begins
        anew. None if there was nothing."""
        cdef cnp.ndarray counts
        cdef cnp.npy_intp size = BUCKETS
        if self.count == 0 and self.negative == 0:
            return None
        counts = cnp.PyArray_EMPTY(1, &size, cnp.NPY_INT64, 0)
        memcpy(cnp.PyArray_DATA(counts), self.buckets, sizeof(self.buckets))
        result = (counts, self.count, self.negative, self.sum, self.least, self.most)
        self.clear()
        return result


@cython.final
cdef class FrameReader(UnderLease):
    """Takes descriptors off a drain and hands over the frames that are there. One thread at a time.

    Frames are of `kind`, and given `lookup` and `late`; `ages`, if there is one, counts how old they are.

    Each descriptor is counted once: as `received`, `late`, in `invalid()`, as `skipped`, `repeated`, `other_stream`,
    `other_epoch`, `unmapped`, `unsupported` or as a regression. `gap` counts the frames that no descriptor told of.
    Within an epoch, received + late + invalid + skipped + gap is what the producer published from the first frame
    heard of to the last. The counts go on over `remap`.

    A sequence that goes back (decisions.md #21) stops the reader: `regressed` names it and nothing more is taken
    until `remap`. Whoever joins a stream again may hear its last messages again, and that is no regression: then
    frames that were told of before are passed over, until a later one comes or as many of them are in their slots as
    there are slots. After a gap of more than `max_gap` only the newest is handed over (Wire 15.4); None: never.

    Who is slower than the producer would always be handed the oldest frames that are whole, which are overwritten before
    he has used them. So after `lapped` fewer are handed over at once, and none that is nearly as old: those are `late`
    too. Both are relaxed again while frames stay whole.

    With `ledger`, `drops()` names each frame that was told of and not handed over.
    """

    cdef readonly Drain drain
    cdef readonly RingReader ring
    cdef readonly uint32_t stream_id
    cdef readonly uint64_t epoch
    cdef type kind
    cdef object lookup
    cdef object late_
    cdef public Ages ages
    cdef int64_t now
    cdef uint64_t last_seq
    cdef bint begun
    cdef bint stopped
    cdef uint64_t stopped_at
    cdef uint64_t max_gap_
    cdef uint64_t missing
    cdef uint64_t joins
    cdef uint64_t before_join
    cdef uint64_t may_repeat
    cdef int32_t pool  # of the last frame: that of the next one, most likely
    cdef uint8_t *at
    cdef uint8_t *end
    cdef Py_ssize_t budget
    cdef Py_ssize_t seen
    cdef bint hurt
    cdef Py_ssize_t handed
    cdef Py_ssize_t batch
    cdef Py_ssize_t most
    cdef uint64_t margin
    cdef uint8_t records[BATCH * RECORD_BYTES]
    cdef uint64_t reasons[EXTENT + 1]
    cdef readonly uint64_t received
    cdef readonly uint64_t gap
    cdef readonly uint64_t late
    cdef readonly uint64_t skipped
    cdef readonly uint64_t repeated
    cdef readonly uint64_t other_stream
    cdef readonly uint64_t other_epoch
    cdef readonly uint64_t unmapped
    cdef readonly uint64_t unsupported
    cdef readonly uint64_t regressions
    cdef readonly uint64_t resyncs
    cdef list ledger

    def __cinit__(
        self, Drain drain not None, RingReader ring, uint32_t stream_id, uint64_t epoch=0, *, max_gap=None,
        bint ledger=False, type kind=Taken, lookup=None, late=None, Ages ages=None,
    ):
        if not issubclass(kind, Taken):
            raise TypeError(f"{kind.__name__} is no kind of frame")
        self.ledger = [] if ledger else None
        self.kind = kind
        self.lookup = lookup
        self.late_ = late
        self.ages = ages
        self.drain = drain
        self.joins = drain.joins
        self.stream_id = stream_id
        self.max_gap_ = <uint64_t>-1
        self.at = self.end = self.records
        self.most = RELAXED
        self.remap(ring, epoch)
        self.max_gap = max_gap

    def remap(self, RingReader ring, uint64_t epoch=0):
        """Goes on with another mapping, at whatever sequence comes first; with None everything is `unmapped`."""
        self.ring = ring
        self.epoch = epoch
        self.begun = False
        self.stopped = False
        self.may_repeat = 0
        self.pool = 0
        self.margin = 0
        self.drain.c.straight.coming.slot = NULL

    @property
    def max_gap(self):
        return None if self.max_gap_ == <uint64_t>-1 else self.max_gap_

    @max_gap.setter
    def max_gap(self, value):
        self.max_gap_ = <uint64_t>-1 if value is None else value

    @property
    def next_seq(self):
        """The sequence that would leave no gap; None before the first."""
        return <object>self.last_seq + 1 if self.begun else None

    @property
    def regressed(self):
        """The sequence that went back and stopped the reader, or None."""
        return self.stopped_at if self.stopped else None

    def take(self, Py_ssize_t limit=256):
        """Up to `limit` frames, oldest first, of what is queued. Never waits. None if the lease is over.

        Raises MediaDriverLost, TransportClosed or ForkedError when nothing is queued and nothing can come any more.
        """
        return self.take_frames(limit)

    cdef list take_frames(self, Py_ssize_t limit):
        cdef Descriptor found
        cdef list result
        cdef Taken taken
        cdef Py_ssize_t left
        cdef int64_t now = fp_clock_ns(CLOCK_MONOTONIC)
        if limit < 1:
            raise ValueError("the limit is at least 1")
        if self.over_at(now):
            return None
        result = []
        self.begin()
        if self.ages is not None and self.ages.clock == CLOCK_MONOTONIC:
            self.now = now
        self.pace()
        left = limit if self.most == RELAXED else min(limit, self.most // SIXTEENTHS)
        while left > 0 and self.advance(&found, left):
            if self.missing > self.max_gap_:
                self.resyncs += 1
                self.skip_to_newest(&found)
            if self.margin and self.is_pressed(found.seq):
                self.give_up(&found, OVERWRITTEN)
            else:
                taken = self.accept(&found)
                if taken is not None:
                    result.append(taken)
                    self.handed += 1
                    left -= 1
            if self.at == self.end and self.drain.c.straight.emptied:
                break  # one more look would cost as much as the frame
        if self.seen == 0 and not self.stopped:
            self.drain.check()
        return result

    def latest(self):
        """The newest frame of what is queued, older ones being skipped unchecked; None if there is none that can be
        read. Raises like `take`."""
        cdef Descriptor found
        self.begin()
        if self.advance(&found, BATCH):
            self.skip_to_newest(&found)
            return self.accept(&found)
        if self.seen == 0 and not self.stopped:
            self.drain.check()
        return None

    def drops(self):
        """Epoch, sequence and rule of each frame that was told of and not handed over since the last call, in order;
        None for the rule where its epoch was not mapped. Of frames skipped for newer ones it does not tell."""
        if self.ledger is None:
            raise ValueError("this reader keeps no ledger")
        found, self.ledger = self.ledger, []
        return found

    def lapped(self):
        """A frame that was handed over was overwritten before or while it was used."""
        self.hurt = True

    def invalid(self):
        """Frames whose slot broke a rule, by the rule; late ones are not among them (decisions.md #25)."""
        return {
            DropReason(reason): self.reasons[reason]
            for reason in range(OVERWRITTEN + 1, EXTENT + 1) if self.reasons[reason]
        }

    def statistics(self):
        return {
            "received": self.received,
            "gap": self.gap,
            "late": self.late,
            "skipped": self.skipped,
            "repeated": self.repeated,
            "invalid": sum(self.invalid().values()),
            "other_stream": self.other_stream,
            "other_epoch": self.other_epoch,
            "unmapped": self.unmapped,
            "unsupported": self.unsupported,
            "regressions": self.regressions,
            "resyncs": self.resyncs,
        }

    cdef void begin(self) noexcept:
        # What comes in while we take is for the next call: a flood does not keep the caller here.
        self.budget = <Py_ssize_t>self.drain.c.capacity + BATCH
        self.seen = 0
        self.now = 0
        if self.joins != self.drain.joins:
            self.join()

    cdef void pace(self) noexcept:
        """How many frames at once, and how old at the most, after what became of those that were handed over last."""
        cdef uint64_t slots
        if self.handed:
            self.batch = self.handed
        if self.hurt:
            slots = <uint64_t>self.ring.mask + 1 if self.ring is not None else 1
            self.most = max(SIXTEENTHS, min(self.most, SIXTEENTHS * self.batch) // 2)
            self.margin = min(2 * self.margin + SIXTEENTHS, SIXTEENTHS * (slots - max(slots // 4, <uint64_t>1)))
        elif self.handed and (self.most < RELAXED or self.margin):
            self.most = min(self.most + self.most // 16, <Py_ssize_t>RELAXED)
            self.margin -= (self.margin + 63) // 64
        self.hurt = False
        self.handed = 0

    cdef bint is_pressed(self, uint64_t seq) noexcept:
        """Whether the frame that is older than this one by the margin is overwritten already."""
        cdef uint64_t margin = self.margin // SIXTEENTHS
        cdef uint64_t older = seq - margin
        return seq >= margin and fp_slot_look_again(
            self.ring.slots + <size_t>(<uint32_t>older & self.ring.mask) * FP_HEADER_SLOT_BYTES
        ) >> 1 > older

    cdef void join(self) noexcept:
        """The drain joined its stream again: what is queued now may be from before, what comes behind it is not."""
        self.joins = self.drain.joins
        if self.begun:
            self.before_join = self.drain.queued() + <uint64_t>(self.end - self.at) // RECORD_BYTES
            self.may_repeat = <uint64_t>self.ring.mask + 1

    cdef bint is_repeated(self, uint64_t seq) noexcept:
        """Whether a frame that was told of before is told of again. Of those whose slots hold newer frames there is no
        end, and no harm; of the others there are as many as slots, and the next one is a producer that goes back."""
        if self.may_repeat == 0:
            return False
        if self.ring.unchanged(seq):
            self.may_repeat -= 1
        return True

    cdef bint advance(self, Descriptor *found, Py_ssize_t wanted) except -1:
        """The next descriptor of our epoch, in sequence and accounted for up to its own fate; False if there is
        none. It asks the drain for no more than `wanted`, so that nothing is left here while others wait there."""
        cdef Py_ssize_t count
        cdef uint8_t *record
        cdef bint early
        while not self.stopped:
            if self.at == self.end:
                if self.budget <= 0:
                    return False
                count = self.drain.take_records(self.records, MESSAGE_BYTES, wanted if wanted < BATCH else BATCH)
                if count == 0:
                    return False
                self.at = self.records
                self.end = self.records + count * RECORD_BYTES
                self.budget -= count
                self.expect(self.at)
            record = self.at
            self.at += RECORD_BYTES
            if self.at != self.end:
                self.expect(self.at)
            self.seen += 1
            early = self.before_join > 0
            if early:
                self.before_join -= 1
            if not self.is_ours(record, found):
                continue
            self.missing = 0
            if self.begun:
                if found.seq <= self.last_seq:
                    if self.is_repeated(found.seq):
                        self.repeated += 1
                        continue
                    self.regressions += 1
                    self.stopped = True
                    self.stopped_at = found.seq
                    return False
                self.missing = found.seq - self.last_seq - 1
                self.gap += self.missing
            if not early:
                self.may_repeat = 0
            self.begun = True
            self.last_seq = found.seq
            return True
        return False

    cdef void expect(self, const uint8_t *record) noexcept:
        """Has the lines fetched that a look at the frame needs: its slot and where its payload begins are with the
        producer, and would be waited for one after the other."""
        cdef RingReader ring = self.ring
        cdef uint64_t seq
        cdef size_t index
        if ring is None or ring.closed:
            return
        memcpy(&seq, record + 8 + FP_MESSAGE_HEADER_BYTES + FP_FRAME_DESCRIPTOR_SEQ_OFFSET, 8)
        index = <uint32_t>seq & ring.mask
        fp_expect_reads(ring.slots + index * FP_HEADER_SLOT_BYTES, FP_HEADER_SLOT_BYTES)
        if 0 <= self.pool < ring.npools:
            fp_expect_reads(ring.pools[self.pool].base + index * ring.pools[self.pool].stride_bytes, 1)

    cdef void look_forward(self, uint64_t seq) noexcept:
        """The drain has the same fetched as soon as it sees a message, before it is read, if this is the frame."""
        cdef RingReader ring = self.ring
        cdef fp_coming_t *coming = &self.drain.c.straight.coming
        cdef size_t index = <uint32_t>seq & ring.mask
        coming.slot = coming.payload = ring.slots + index * FP_HEADER_SLOT_BYTES
        if self.pool >= 0:
            coming.payload = ring.pools[self.pool].base + index * ring.pools[self.pool].stride_bytes

    cdef bint is_ours(self, const uint8_t *record, Descriptor *found) except -1:
        """The schema gate (schemaId, version, templateId, blockLength: all of the header at once), then stream and
        epoch. A sequence that no `seq_commit` can hold is no descriptor either."""
        cdef const uint8_t *message = record + 8
        cdef const uint8_t *block = message + FP_MESSAGE_HEADER_BYTES
        cdef uint64_t length
        cdef uint32_t stream_id
        cdef uint64_t epoch
        memcpy(&length, record, 8)
        if length != MESSAGE_BYTES or memcmp(message, HEADER, FP_MESSAGE_HEADER_BYTES) != 0:
            self.unsupported += 1
            return False
        memcpy(&stream_id, block + FP_FRAME_DESCRIPTOR_STREAM_ID_OFFSET, 4)
        memcpy(&epoch, block + FP_FRAME_DESCRIPTOR_EPOCH_OFFSET, 8)
        memcpy(&found.seq, block + FP_FRAME_DESCRIPTOR_SEQ_OFFSET, 8)
        if stream_id != self.stream_id:
            self.other_stream += 1
        elif self.ring is None or self.ring.closed:
            self.unmapped += 1
            self.note(epoch, found.seq, 0)
        elif epoch != self.epoch:
            self.other_epoch += 1
            self.note(epoch, found.seq, 0)
        elif found.seq >> 63:
            self.unsupported += 1
        else:
            memcpy(&found.timestamp_ns, block + FP_FRAME_DESCRIPTOR_TIMESTAMP_NS_OFFSET, 8)
            memcpy(&found.meta_version, block + FP_FRAME_DESCRIPTOR_META_VERSION_OFFSET, 4)
            memcpy(&found.trace_id, block + FP_FRAME_DESCRIPTOR_TRACE_ID_OFFSET, 8)
            return True
        return False

    cdef int note(self, uint64_t epoch, uint64_t seq, int reason) except -1:
        if self.ledger is not None and not seq >> 63:
            self.ledger.append((epoch, seq, DropReason(reason) if reason else None))
        return 0

    cdef int skip_to_newest(self, Descriptor *found) except -1:
        cdef Descriptor newer
        while self.advance(&newer, BATCH):
            self.skipped += 1
            found[0] = newer
        return 0

    cdef int give_up(self, Descriptor *found, int reason) except -1:
        self.reasons[reason] += 1
        if reason <= OVERWRITTEN:
            self.late += 1
        return self.note(self.epoch, found.seq, reason)

    cdef Taken accept(self, Descriptor *found):
        """The frame if its slot is in order, else None and a count."""
        cdef int reason = ACCEPTED
        cdef Taken taken
        cdef CheckedSlot checked = self.ring.check_slot(found.seq, &reason)
        if reason:
            self.give_up(found, reason)
            return None
        taken = <Taken>fp_instance(self.kind, NOTHING)
        taken.ring = self.ring
        taken.checked = checked
        taken.descriptor = found[0]
        taken.stream_id = self.stream_id
        taken.epoch = self.epoch
        taken.lookup = self.lookup
        taken.late = self.late_
        self.received += 1
        self.pool = checked.slot.pool
        self.look_forward(found.seq + 1)
        if self.ages is not None and checked.slot.timestamp_ns:
            if self.now <= <int64_t>checked.slot.timestamp_ns:  # it came meanwhile
                self.now = fp_clock_ns(self.ages.clock)
            self.ages.record(self.now - <int64_t>checked.slot.timestamp_ns)
        return taken
