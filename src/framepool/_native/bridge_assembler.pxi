# Frames out of chunks. The order of the rules is that of `framepool.bridge.assembler`.

cdef enum:
    # Frames that are remembered as given up; `assembler.GIVEN_UP_KEPT`.
    KEPT = 256
    # Frames that can be whole and not yet published: as many as one C poll can complete.
    BATCH = 64
    # Places for chunks that a frame leaves behind for the next one; more are given back.
    PIECES_KEPT = 4096
    MOST_FRAMES = 1024

cdef enum:
    FREE = 0
    OPEN = 1
    WHOLE = 2

cdef struct Piece:
    # A chunk that arrived, by its index.
    uint32_t offset
    uint16_t length
    uint16_t there

cdef struct Assembly:
    uint64_t seq
    uint64_t trace_id
    uint64_t checksum
    uint64_t arrived_bytes
    int64_t since_ns
    uint8_t *target
    Claim *claim
    Piece *pieces
    uint32_t capacity
    uint32_t arrived
    uint32_t chunk_count
    uint32_t payload_length
    int state
    uint8_t header[FP_HEADER_SLOT_BYTES]

cdef struct SourcePool:
    uint32_t stride_bytes
    uint16_t pool_id


cdef int compare_pieces(const void *one, const void *other) noexcept nogil:
    cdef const Piece *a = <const Piece *>one
    cdef const Piece *b = <const Piece *>other
    if a.offset != b.offset:
        return -1 if a.offset < b.offset else 1
    return <int>a.length - <int>b.length


cdef bint follow(const Piece *pieces, uint32_t count) noexcept nogil:
    """Whether each slice begins where the one before ends, the first at 0."""
    cdef uint64_t end = 0
    cdef uint32_t i
    for i in range(count):
        if pieces[i].offset != end:
            return False
        end += pieces[i].length
    return True


cdef bint tiled(const Assembly *assembly) noexcept nogil:
    """Whether the slices, however they are numbered, neither overlap nor leave a gap."""
    cdef Piece *ordered
    cdef bint good
    cdef size_t size = assembly.chunk_count * sizeof(Piece)
    if follow(assembly.pieces, assembly.chunk_count):
        return True
    ordered = <Piece *>malloc(size)
    if ordered == NULL:
        return False
    memcpy(ordered, assembly.pieces, size)
    qsort(ordered, assembly.chunk_count, sizeof(Piece), compare_pieces)
    good = follow(ordered, assembly.chunk_count)
    free(ordered)
    return good


@cython.final
cdef class Assembler:
    """The frames of one source stream out of their chunks, each in the slot it will be read from (Bridge 5, 6, 8).

    Frames go to `target`, which has `ring`, the RingWriter to claim slots of, `open`, whether that is allowed at this
    time, and `publish(seq, layout, timestamp_ns, meta_version, trace_id)`, which commits and tells of a whole frame and
    says whether it did. Only the sizes `chunk_bytes` and `max_payload_bytes` of `sizing` are used.

    At most `max_frames` are on their way at once; a newer one takes the room of the oldest. After `freshness_ns` without
    a word of the highest epoch a lower one is believed (`decisions.md` #20). One thread at a time.
    """

    cdef readonly uint32_t stream_id
    cdef uint64_t max_payload
    cdef uint32_t chunk_bytes
    cdef int64_t timeout_ns
    cdef int64_t freshness_ns
    cdef int32_t max_frames
    cdef bint checksum

    cdef object target_
    cdef RingWriter ring
    cdef Layout last_layout
    cdef bint allowed
    cdef bint busy

    cdef bint announced
    cdef uint64_t epoch_
    cdef uint64_t highest
    cdef int64_t heard_ns  # of the highest epoch, last
    cdef bint newer  # a chunk told of a higher epoch, to be believed once it is known not to be torn
    cdef uint64_t newer_epoch
    cdef SourcePool *pools
    cdef int32_t npools
    cdef uint32_t largest_stride

    cdef Assembly *flight
    cdef int32_t places
    cdef int32_t open_count
    cdef int32_t whole[BATCH]  # places, in the order in which they became whole
    cdef int32_t whole_count
    cdef Assembly *recent  # of the chunk before, or NULL
    cdef Assembly *touched  # by the last chunk, or NULL
    cdef uint64_t floor  # what is below was published or is too late
    cdef uint64_t given_up[KEPT]
    cdef uint32_t given_up_count

    cdef uint64_t counts[CAUSES_END]
    cdef uint64_t reasons[EXTENT + 1]
    cdef readonly uint64_t chunks
    cdef readonly uint64_t copied_bytes
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t published
    cdef readonly uint64_t old_announces
    cdef readonly uint64_t state_bytes

    def __cinit__(
        self,
        uint32_t stream_id,
        sizing,
        *,
        int64_t timeout_ns=250_000_000,
        int64_t freshness_ns=3_000_000_000,
        int32_t max_frames=16,
        bint crc32c=False,
    ):
        if not 1 <= max_frames <= MOST_FRAMES or timeout_ns < 1:
            raise ValueError(f"max_frames is from 1 to {MOST_FRAMES} and timeout_ns at least 1")
        self.stream_id = stream_id
        self.chunk_bytes = sizing.chunk_bytes
        self.max_payload = sizing.max_payload_bytes
        self.timeout_ns = timeout_ns
        self.freshness_ns = freshness_ns
        self.max_frames = max_frames
        self.checksum = crc32c
        self.places = max_frames + BATCH
        self.flight = <Assembly *>PyMem_Calloc(self.places, sizeof(Assembly))
        if self.flight == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.places if self.flight != NULL else 0):
            free(self.flight[i].pieces)
        PyMem_Free(self.flight)
        PyMem_Free(self.pools)

    # ---- from outside: where frames go, and which are to be accepted

    @property
    def target(self):
        """Where frames go; None drops all chunks. Setting it gives up the frames on their way."""
        return self.target_

    @target.setter
    def target(self, target):
        self.check_idle()
        ring = None if target is None else <RingWriter?>target.ring
        self.give_up_all(TARGET_CHANGE)
        self.target_ = target
        self.ring = ring
        self.allowed = ring is not None

    @property
    def epoch(self):
        """The source epoch that frames are accepted of; None before there was an announce."""
        return self.epoch_ if self.announced else None

    @property
    def in_flight(self):
        """Frames on their way."""
        return self.open_count + self.whole_count

    def announce(self, uint64_t epoch, strides, int64_t now_ns=0):
        """What the latest forwarded ShmPoolAnnounce says, its strides by pool id; True if it begins a new source epoch.

        Then the frames on their way are given up, sequences may begin anew, and `target` is None until it is set. An
        announce of an older epoch than was heard of lately, in a chunk or an announce, is counted and ignored (Bridge
        8): False.
        """
        cdef SourcePool *pools
        cdef int32_t i
        cdef uint32_t largest = 0
        self.check_idle()
        self.believe()
        if self.announced and epoch < self.highest and now_ns - self.heard_ns <= self.freshness_ns:
            self.old_announces += 1
            return False
        pools = <SourcePool *>PyMem_Calloc(len(strides) + 1, sizeof(SourcePool))
        if pools == NULL:
            raise MemoryError
        try:
            for i, (pool_id, stride_bytes) in enumerate(strides.items()):
                pools[i].pool_id = pool_id
                pools[i].stride_bytes = stride_bytes
                largest = max(largest, pools[i].stride_bytes)
        except BaseException:
            PyMem_Free(pools)
            raise
        PyMem_Free(self.pools)
        self.pools = pools
        self.npools = len(strides)
        self.largest_stride = largest
        self.heard_ns = now_ns
        if self.announced and epoch == self.epoch_ == self.highest:
            return False
        self.restart()
        self.announced = True
        self.epoch_ = self.highest = epoch
        return True

    def dropped(self, uint64_t seq):
        """Whether nothing more comes of this frame: it was dropped, or published already (`decisions.md` #54)."""
        return seq < self.floor or self.was_given_up(seq)

    def expire(self, int64_t now_ns):
        """Gives up the frames that take longer than the timeout (Bridge 5.3a); `ChunkReceiver.poll` does it too."""
        self.check_idle()
        self.expire_at(now_ns)

    def feed(self, message, uint64_t reserved=0, int64_t now_ns=0, *, bint torn=False):
        """Takes one message as if it came from Aeron with this reserved value; the number of its cause if it was of no
        use, else 0. With `torn`, as if its place in the log was overwritten while it was read. For tests, and for chunks
        that come another way."""
        cdef Py_buffer view
        cdef Chunk chunk
        cdef int cause
        cdef uint64_t refused = self.counts[REFUSED]
        self.check_idle()
        self.admit()
        PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
        self.busy = True
        cause = decode_chunk(<const uint8_t *>view.buf, view.len, &chunk)
        if not cause and chunk.stream_id != self.stream_id:
            cause = OTHER_STREAM
        if cause:
            self.counts[cause] += 1
        else:
            cause = self.take(&chunk, reserved, now_ns)
            if torn:
                self.retract()
        self.busy = False
        PyBuffer_Release(&view)
        self.settle()
        return REFUSED if self.counts[REFUSED] != refused else cause

    def invalid(self):
        """Frames whose header broke a rule of Wire 8, by the rule; together they are `header` of the statistics."""
        return {DropReason(reason): self.reasons[reason] for reason in range(EXTENT + 1) if self.reasons[reason]}

    def statistics(self):
        """What became of chunks and frames; the causes are those of `framepool.bridge.chunks.ChunkDrop`."""
        return {
            "published": self.published,
            "in_flight": self.open_count + self.whole_count,
            "chunks": self.chunks,
            "copied_bytes": self.copied_bytes,
            "duplicates": self.duplicates,
            "old_announces": self.old_announces,
            "state_bytes": self.state_bytes,
            **{CAUSES[cause].lower(): self.counts[cause] for cause in range(1, CAUSES_END)},
        }

    cdef int check_idle(self) except -1:
        if self.busy:
            raise ValueError("another thread is receiving: one thread at a time")
        return 0

    # ---- a chunk, without the interpreter's lock

    cdef int take(self, const Chunk *chunk, uint64_t reserved, int64_t now_ns) noexcept nogil:
        """One well-formed chunk of this stream: TAKEN, also for an identical duplicate, or the cause, counted."""
        cdef int cause
        self.believe()
        self.touched = NULL
        self.chunks += 1
        if chunk.epoch >= self.highest:
            self.heard_ns = now_ns
        cause = self.judge(chunk)
        if cause:
            self.counts[cause] += 1
            return cause
        cause = self.place(chunk, reserved, now_ns)
        if cause:
            self.give_up(chunk.seq, self.find(chunk.seq), cause)
        return cause

    cdef void believe(self) noexcept nogil:
        """Acts on the higher epoch that the chunk before told of; what was whole by then is not on its way any more."""
        cdef int32_t i
        if self.newer:
            self.newer = False
            self.highest = self.newer_epoch
            for i in range(self.places):
                if self.flight[i].state == OPEN:
                    self.give_up(self.flight[i].seq, &self.flight[i], EPOCH_CHANGE)

    cdef int judge(self, const Chunk *chunk) noexcept nogil:
        """The rules whose breach costs the chunk alone."""
        if not self.announced:
            return NOT_ANNOUNCED
        if chunk.epoch < self.highest:
            return OLD_EPOCH
        if chunk.epoch > self.epoch_:
            if chunk.epoch > self.highest:
                self.newer = True
                self.newer_epoch = chunk.epoch
            return NEW_EPOCH
        if not self.allowed or self.ring.closed:
            return NO_TARGET
        if chunk.count == 0:
            return CHUNK_COUNT
        if chunk.index >= chunk.count:
            return CHUNK_INDEX
        if chunk.header_size != <uint32_t>(FP_HEADER_SLOT_BYTES if chunk.header_included else 0):
            return HEADER_BYTES
        if chunk.payload_size != chunk.length:
            return PAYLOAD_BYTES
        if chunk.length > self.chunk_bytes:
            return CHUNK_BYTES
        if chunk.seq >> 63:
            return SEQUENCE
        if chunk.seq < self.floor:
            return BEHIND
        if self.recent != NULL and self.recent.seq == chunk.seq:
            return TAKEN
        return GIVEN_UP if self.was_given_up(chunk.seq) else TAKEN

    cdef int place(self, const Chunk *chunk, uint64_t reserved, int64_t now_ns) noexcept nogil:
        """The rules whose breach costs the frame, and the chunk's place in it."""
        cdef Assembly *assembly
        cdef Piece *piece
        cdef int cause = TAKEN
        if chunk.header_included != (chunk.index == 0):
            return HEADER_PLACE
        if chunk.index == 0 and chunk.offset != 0:
            return FIRST_OFFSET
        if <uint64_t>chunk.offset + chunk.length > chunk.payload_length:
            return SLICE
        assembly = self.find(chunk.seq)
        if assembly == NULL:
            assembly = self.begin(chunk, now_ns, &cause)
            if assembly == NULL:
                return cause
        self.recent = self.touched = assembly
        if chunk.count != assembly.chunk_count or chunk.payload_length != assembly.payload_length:
            return INCONSISTENT
        piece = &assembly.pieces[chunk.index]
        if piece.there:
            return self.compare(assembly, piece, chunk)
        if chunk.index == 0:
            cause = self.check_header(chunk)
            if cause:
                return cause
            memcpy(assembly.header, chunk.header, FP_HEADER_SLOT_BYTES)
            assembly.trace_id = reserved
        elif chunk.index == chunk.count - 1:
            assembly.checksum = reserved
        memcpy(assembly.target + chunk.offset, chunk.payload, chunk.length)
        self.copied_bytes += chunk.length
        piece.offset = chunk.offset
        piece.length = <uint16_t>chunk.length
        piece.there = True
        assembly.arrived += 1
        assembly.arrived_bytes += chunk.length
        if assembly.arrived_bytes > assembly.payload_length:
            return OVERLAP
        return self.finish(assembly) if assembly.arrived == assembly.chunk_count else TAKEN

    cdef Assembly *find(self, uint64_t seq) noexcept nogil:
        cdef int32_t i
        if self.recent != NULL and self.recent.seq == seq:
            return self.recent
        for i in range(self.places):
            if self.flight[i].state != FREE and self.flight[i].seq == seq:
                return &self.flight[i]
        return NULL

    cdef Assembly *begin(self, const Chunk *chunk, int64_t now_ns, int *cause) noexcept nogil:
        """Room for a frame that begins: a place among those on their way, and a slot of the ring; or NULL."""
        cdef uint32_t index = <uint32_t>chunk.seq & self.ring.mask
        cdef Claim *claim = &self.ring.claims[index]
        cdef Assembly *rival = NULL
        cdef Assembly *assembly
        cdef int32_t pool = self.ring.fit(chunk.payload_length)
        cdef uint64_t floor = self.ring.floor
        if chunk.payload_length > self.max_payload:
            cause[0] = PAYLOAD_LENGTH
        elif chunk.payload_length > self.largest_stride:
            cause[0] = SOURCE_STRIDE
        elif pool < 0:
            cause[0] = NO_POOL_FITS
        # Nobody else writes this word. In one slot sequences never go back (Wire 15.3).
        elif get64(self.ring.slots + <size_t>index * FP_HEADER_SLOT_BYTES) >> 1 > chunk.seq:
            cause[0] = CROWDED
        elif claim.open:
            rival = self.find(claim.seq)
            if rival == NULL or rival.state == WHOLE:
                cause[0] = CROWDED
        elif self.open_count >= self.max_frames:
            rival = self.oldest()
            if rival.seq > chunk.seq:
                cause[0] = CROWDED
        if cause[0]:
            return NULL
        if rival != NULL:
            self.give_up(rival.seq, rival, CROWDED)
        assembly = self.vacant(chunk.count)
        if assembly == NULL:
            cause[0] = CROWDED
            return NULL
        # The ring holds its claims to a rising sequence, ours need not begin in that order (Bridge 5.2).
        self.ring.begin(chunk.seq, chunk.payload_length, pool)
        if floor > self.ring.floor:
            self.ring.floor = floor
        assembly.seq = chunk.seq
        assembly.since_ns = now_ns
        assembly.claim = claim
        assembly.target = self.ring.payload_of(claim)
        assembly.chunk_count = chunk.count
        assembly.payload_length = chunk.payload_length
        assembly.arrived = 0
        assembly.arrived_bytes = 0
        assembly.trace_id = 0
        assembly.checksum = 0
        assembly.state = OPEN
        self.open_count += 1
        return assembly

    cdef Assembly *oldest(self) noexcept nogil:
        """Of those not whole, which are some, the one of the lowest sequence."""
        cdef Assembly *found = NULL
        cdef int32_t i
        for i in range(self.places):
            if self.flight[i].state == OPEN and (found == NULL or self.flight[i].seq < found.seq):
                found = &self.flight[i]
        return found

    cdef Assembly *vacant(self, uint32_t chunk_count) noexcept nogil:
        """A free place with room for so many chunks, none of which is there; NULL for want of memory."""
        cdef Assembly *assembly = NULL
        cdef Piece *pieces
        cdef int32_t i
        for i in range(self.places):
            if self.flight[i].state == FREE:
                assembly = &self.flight[i]
                break
        if assembly == NULL:
            return NULL
        if assembly.capacity < chunk_count:
            pieces = <Piece *>realloc(assembly.pieces, chunk_count * sizeof(Piece))
            if pieces == NULL:
                return NULL
            self.state_bytes += (chunk_count - assembly.capacity) * sizeof(Piece)
            assembly.pieces = pieces
            assembly.capacity = chunk_count
        memset(assembly.pieces, 0, chunk_count * sizeof(Piece))
        return assembly

    cdef int compare(self, const Assembly *assembly, const Piece *piece, const Chunk *chunk) noexcept nogil:
        """A chunk that came before: the same again is ignored, anything else costs the frame (Bridge 5.2)."""
        if (
            piece.offset != chunk.offset
            or piece.length != chunk.length
            or memcmp(assembly.target + chunk.offset, chunk.payload, chunk.length) != 0
            or (chunk.index == 0 and memcmp(assembly.header, chunk.header, FP_HEADER_SLOT_BYTES) != 0)
        ):
            return CONFLICT
        self.duplicates += 1
        return TAKEN

    cdef int check_header(self, const Chunk *chunk) noexcept nogil:
        """Bridge 6, steps 4 to 6; the source's `payload_slot` is nobody's business here (step 9)."""
        cdef const uint8_t *header = chunk.header
        cdef Tensor tensor
        cdef int reason = 0
        cdef int32_t i
        cdef uint16_t pool_id = get16(header + FP_SLOT_HEADER_POOL_ID_OFFSET)
        cdef uint32_t stride = 0
        cdef bint known = False
        if get64(header + FP_SLOT_HEADER_SEQ_COMMIT_OFFSET) >> 1 != chunk.seq:
            return SEQ_COMMIT
        if get32(header + FP_SLOT_HEADER_VALUES_LEN_BYTES_OFFSET) != chunk.payload_length:
            return VALUES_LEN
        for i in range(self.npools):
            if self.pools[i].pool_id == pool_id:
                known = True
                stride = self.pools[i].stride_bytes
                break
        if not known:
            reason = UNKNOWN_POOL
        elif get32(header + FP_SLOT_HEADER_PAYLOAD_OFFSET_OFFSET):
            reason = PAYLOAD_OFFSET
        elif chunk.payload_length > stride:
            reason = VALUES_LENGTH
        elif get32(header + FP_HEADER_BYTES_OFFSET) != FP_TENSOR_HEADER_BYTES:
            reason = TENSOR_HEADER_LENGTH
        else:
            reason = parse_tensor(header + FP_TENSOR_HEADER_OFFSET, &tensor)
            if not reason and tensor.extent > chunk.payload_length:
                reason = EXTENT
        if reason:
            self.reasons[reason] += 1
            return HEADER
        return TAKEN

    cdef int finish(self, Assembly *assembly) noexcept nogil:
        """All chunks are there: the last rules, then the queue of those to be published by `settle`."""
        cdef uint32_t total
        if assembly.arrived_bytes < assembly.payload_length:
            return COVERAGE
        if not tiled(assembly):
            return OVERLAP
        if self.checksum:
            total = fp_crc32c(0, assembly.header, FP_HEADER_SLOT_BYTES)
            total = fp_crc32c(total, assembly.target, assembly.payload_length)
            if assembly.checksum != (CHECKSUM_THERE | total):
                return CHECKSUM
        if self.whole_count == BATCH:
            return CROWDED
        assembly.state = WHOLE
        self.open_count -= 1
        self.whole[self.whole_count] = <int32_t>(assembly - self.flight)
        self.whole_count += 1
        return TAKEN

    # ---- the end of a frame

    cdef bint was_given_up(self, uint64_t seq) noexcept nogil:
        cdef uint32_t i
        for i in range(self.given_up_count if self.given_up_count < KEPT else KEPT):
            if self.given_up[i] == seq:
                return True
        return False

    cdef void give_up(self, uint64_t seq, Assembly *assembly, int cause) noexcept nogil:
        """Drops a frame, which may not have begun."""
        self.counts[cause] += 1
        self.given_up[self.given_up_count % KEPT] = seq
        # From KEPT on the count says only which is the oldest, so it may begin again there.
        self.given_up_count = self.given_up_count + 1 if self.given_up_count < 2 * KEPT - 1 else KEPT
        if assembly != NULL:
            if assembly.claim.open and assembly.claim.seq == seq:
                assembly.claim.open = False
            self.leave(assembly)

    cdef void leave(self, Assembly *assembly) noexcept nogil:
        """Frees the place of a frame."""
        cdef int32_t place = <int32_t>(assembly - self.flight)
        cdef int32_t i, kept = 0
        if assembly.state == OPEN:
            self.open_count -= 1
        else:
            for i in range(self.whole_count):
                if self.whole[i] != place:
                    self.whole[kept] = self.whole[i]
                    kept += 1
            self.whole_count = kept
        assembly.state = FREE
        if self.recent == assembly:
            self.recent = NULL
        if self.touched == assembly:
            self.touched = NULL
        if assembly.capacity > PIECES_KEPT:
            self.state_bytes -= assembly.capacity * sizeof(Piece)
            free(assembly.pieces)
            assembly.pieces = NULL
            assembly.capacity = 0

    cdef void give_up_all(self, int cause) noexcept nogil:
        cdef int32_t i
        for i in range(self.places):
            if self.flight[i].state != FREE:
                self.give_up(self.flight[i].seq, &self.flight[i], cause)

    cdef void retract(self) noexcept nogil:
        """The last chunk was overwritten while it was read: nothing that it said holds."""
        self.newer = False
        if self.touched != NULL:
            self.give_up(self.touched.seq, self.touched, TORN)

    cdef void expire_at(self, int64_t now_ns) noexcept nogil:
        cdef int32_t i
        for i in range(self.places if self.open_count else 0):
            if self.flight[i].state == OPEN and now_ns - self.flight[i].since_ns > self.timeout_ns:
                self.give_up(self.flight[i].seq, &self.flight[i], TIMEOUT)

    cdef void restart(self) noexcept:
        """Another epoch: sequences begin anew, in another ring."""
        self.give_up_all(EPOCH_CHANGE)
        self.newer = False
        self.floor = 0
        self.given_up_count = 0
        self.target_ = None
        self.ring = None
        self.allowed = False

    cdef int admit(self) except -1:
        """Looks whether slots may be claimed: before a batch of chunks, with the interpreter's lock."""
        self.allowed = self.ring is not None and not self.ring.closed and bool(self.target_.open)
        return 0

    cdef int settle(self) except -1:
        """Publishes what is whole, after a batch of chunks, with the interpreter's lock. The first error of the target
        is raised once none is left."""
        cdef object error = None
        self.believe()
        while self.whole_count:
            try:
                self.publish(&self.flight[self.whole[0]])
            except BaseException as raised:
                error = error or raised
        if error is not None:
            raise error
        return 0

    cdef int publish(self, Assembly *assembly) except -1:
        """Publishes a whole frame, which ends all older ones."""
        cdef uint64_t seq = assembly.seq
        cdef uint64_t trace_id = assembly.trace_id
        cdef const uint8_t *header = assembly.header
        cdef Claim *claim = assembly.claim
        cdef bint done = False
        cdef int32_t i
        if seq < self.floor:
            self.give_up(seq, assembly, OVERTAKEN)
            return 0
        if self.ring.closed:
            self.give_up(seq, assembly, TARGET_CHANGE)
            return 0
        ring = self.ring  # holds the claim, whatever the target does
        self.leave(assembly)  # its bytes stay until another frame begins
        try:
            done = self.target_.publish(
                seq,
                self.layout_of(header + FP_TENSOR_HEADER_OFFSET),
                get64(header + FP_SLOT_HEADER_TIMESTAMP_NS_OFFSET),
                get32(header + FP_SLOT_HEADER_META_VERSION_OFFSET),
                trace_id,
            )
        finally:
            if done:
                self.published += 1
                self.floor = seq + 1
            else:
                if claim.open and claim.seq == seq:
                    claim.open = False
                self.give_up(seq, NULL, REFUSED)
        for i in range(self.places if done and self.open_count else 0):
            if self.flight[i].state == OPEN and self.flight[i].seq < self.floor:
                self.give_up(self.flight[i].seq, &self.flight[i], OVERTAKEN)
        return 0

    cdef Layout layout_of(self, const uint8_t *header):
        """A steady camera sends the same 192 bytes for ever: one object serves for all its frames."""
        if self.last_layout is None or memcmp(self.last_layout.raw, header, FP_TENSOR_HEADER_BYTES) != 0:
            self.last_layout = Layout(header[:FP_TENSOR_HEADER_BYTES])
        return self.last_layout
