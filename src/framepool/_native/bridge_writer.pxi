# The sender's side.

cdef enum:
    NONE = 0
    LAPPED = 1
    UNMAPPED = 2
    UNHEARD = 3
    TOO_LARGE = 4
    TOO_MANY_CHUNKS = 5
    ABANDONED = 6
    LOSSES_END = 7

cdef tuple LOSSES = (None, "lapped", "unmapped", "unheard", "too_large", "too_many_chunks", "abandoned")


@cython.final
cdef class ChunkWriter:
    """Sends frames of a ring as chunks, one frame at a time; `framepool.bridge.sender` says what that promises."""

    cdef readonly AnyPublication publication
    cdef readonly uint32_t stream_id
    cdef uint64_t max_payload
    cdef uint32_t chunk_bytes
    cdef uint32_t first_bytes
    cdef bint checksum

    # the frame on its way
    cdef RingReader ring
    cdef const uint8_t *slot
    cdef const uint8_t *payload
    cdef uint64_t epoch
    cdef uint64_t seq
    cdef uint64_t trace_id
    cdef uint32_t length
    cdef uint32_t count
    cdef uint32_t index
    cdef uint32_t offset
    cdef uint32_t crc

    cdef uint64_t losses[LOSSES_END]
    cdef readonly uint64_t sent
    cdef readonly uint64_t chunks
    cdef readonly uint64_t payload_bytes
    cdef readonly uint64_t back_pressured

    def __cinit__(self, AnyPublication publication not None, uint32_t stream_id, sizing, *, bint crc32c=False):
        self.publication = publication
        self.stream_id = stream_id
        self.chunk_bytes = sizing.chunk_bytes
        self.first_bytes = sizing.first_bytes
        self.max_payload = sizing.max_payload_bytes
        self.checksum = crc32c

    @property
    def sending(self):
        """Whether a frame is on its way."""
        return self.ring is not None

    def start(self, RingReader ring not None, CheckedSlot checked not None, uint64_t epoch, uint64_t trace_id=0):
        """Begins a frame; False if it is too large to be sent."""
        cdef uint64_t length = checked.slot.values_len_bytes
        cdef uint64_t count
        cdef size_t most = self.publication.constants.max_payload_length
        if self.ring is not None:
            raise ValueError(f"frame {self.seq} is still on its way")
        if max(self.chunk_bytes + OVERHEAD, self.first_bytes + OVERHEAD + FP_HEADER_SLOT_BYTES) > most:
            raise ConfigurationError(
                f"{self.publication.describe()} takes messages of {most} bytes unfragmented, too few for chunks of "
                f"{self.chunk_bytes}: give the channel the MTU that chunks are sized by"
            )
        self.payload = ring.payload_of(checked)
        if checked.slot.pool >= 0 and length > ring.pools[checked.slot.pool].stride_bytes:
            raise ValueError("this slot was checked by another reader")
        if length > self.max_payload:
            self.losses[TOO_LARGE] += 1
            return False
        count = 1
        if length > self.first_bytes:
            count += (length - self.first_bytes + self.chunk_bytes - 1) // self.chunk_bytes
        elif self.checksum:
            count = 2
        if count > FP_BRIDGE_FRAME_CHUNK_CHUNK_COUNT_MAX:
            self.losses[TOO_MANY_CHUNKS] += 1
            return False
        self.seq = checked.slot.seq
        self.slot = ring.slots + <size_t>(<uint32_t>self.seq & ring.mask) * FP_HEADER_SLOT_BYTES
        self.epoch = epoch
        self.trace_id = trace_id
        self.length = <uint32_t>length
        self.count = <uint32_t>count
        self.index = self.offset = self.crc = 0
        self.ring = ring
        return True

    def step(self, uint32_t limit=64):
        """Sends up to `limit` chunks; says how many. 0: Aeron took none, or there is none."""
        cdef RingReader ring = self.ring
        cdef uint64_t before = self.chunks
        cdef int64_t outcome
        cdef int loss = NONE
        if ring is None or limit == 0:
            return 0
        if ring.closed:
            self.lose(UNMAPPED)
            return 0
        self.publication.hold()
        if <uint64_t>self.length - self.offset < RELEASE_FROM:
            outcome = self.run(ring, limit, &loss)
            self.publication.let_go()
        else:
            ring.busy += 1
            with nogil:
                outcome = self.run(ring, limit, &loss)
                self.publication.let_go()
            ring.leave()
        self.publication.sent += self.chunks - before
        if outcome < 0:
            if outcome == NOT_CONNECTED:
                loss = UNHEARD
            elif outcome == BACK_PRESSURED:
                self.back_pressured += 1
            if outcome == ERROR:
                raise ConfigurationError(f"{self.publication.describe()} refuses messages of this length")
            self.publication.note(outcome, "chunk", self.publication.constants.max_payload_length)
        if loss:
            self.lose(loss)
        elif self.index == self.count:
            self.sent += 1
            self.ring = None
        return self.chunks - before

    def abandon(self):
        """Gives up the frame on its way."""
        if self.ring is not None:
            self.lose(ABANDONED)

    cdef void lose(self, int loss) noexcept:
        self.losses[loss] += 1
        self.ring = None

    cdef int64_t run(self, RingReader ring, uint32_t limit, int *loss) noexcept nogil:
        """Sends until the limit, the end, the producer or Aeron stops it; Aeron's `Outcome`, or 0."""
        cdef aeron_buffer_claim_t claim
        cdef uint32_t header_size, size, room
        cdef int64_t position
        cdef uint8_t *target
        cdef uint64_t reserved
        cdef bint last
        while limit and self.index < self.count:
            limit -= 1
            if not ring.unchanged(self.seq):
                loss[0] = LAPPED
                return 0
            header_size = FP_HEADER_SLOT_BYTES if self.index == 0 else 0
            room = self.first_bytes if self.index == 0 else self.chunk_bytes
            size = self.length - self.offset
            if size > room:
                size = room
            position = self.publication.reserve(OVERHEAD + header_size + size, &claim)
            if position < 0:
                return position
            last = self.index + 1 == self.count
            target = self.encode(claim.data, header_size, size)
            if header_size:
                memcpy(target - FP_DATA_LENGTH_BYTES - header_size, self.slot, header_size)
            reserved = self.trace_id if self.index == 0 else 0
            if self.checksum:
                if header_size:
                    self.crc = fp_crc32c(0, target - FP_DATA_LENGTH_BYTES - header_size, header_size)
                self.crc = fp_crc32c_copy(self.crc, target, self.payload + self.offset, size)
                if last:
                    reserved = CHECKSUM_THERE | self.crc
            else:
                memcpy(target, self.payload + self.offset, size)
            put64(claim.frame_header + RESERVED_VALUE_OFFSET, reserved)
            # The last look at the slot comes after every load of it and before the frame can be whole elsewhere.
            if last and not ring.unchanged(self.seq):
                self.publication.finish(&claim, False)
                loss[0] = LAPPED
                return 0
            self.publication.finish(&claim, True)
            self.index += 1
            self.offset += size
            self.chunks += 1
            self.payload_bytes += size
        return 0

    cdef uint8_t *encode(self, uint8_t *message, uint32_t header_size, uint32_t size) noexcept nogil:
        """Writes all of the message but header block and payload; where the payload goes."""
        cdef uint8_t *block = message + FP_MESSAGE_HEADER_BYTES
        memcpy(message, MESSAGE_HEADER, FP_MESSAGE_HEADER_BYTES)
        put32(block + FP_BRIDGE_FRAME_CHUNK_STREAM_ID_OFFSET, self.stream_id)
        put64(block + FP_BRIDGE_FRAME_CHUNK_EPOCH_OFFSET, self.epoch)
        put64(block + FP_BRIDGE_FRAME_CHUNK_SEQ_OFFSET, self.seq)
        put32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_INDEX_OFFSET, self.index)
        put32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_COUNT_OFFSET, self.count)
        put32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_OFFSET_OFFSET, self.offset)
        put32(block + FP_BRIDGE_FRAME_CHUNK_CHUNK_LENGTH_OFFSET, size)
        put32(block + FP_BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH_OFFSET, self.length)
        block[FP_BRIDGE_FRAME_CHUNK_HEADER_INCLUDED_OFFSET] = header_size > 0
        put32(message + HEADER_AT, header_size)
        put32(message + HEADER_AT + FP_DATA_LENGTH_BYTES + header_size, size)
        return message + OVERHEAD + header_size

    def statistics(self):
        """Frames `sent`, with `chunks` and `payload_bytes`; frames not sent by cause; refusals for want of room."""
        return {
            "sent": self.sent,
            "chunks": self.chunks,
            "payload_bytes": self.payload_bytes,
            "back_pressured": self.back_pressured,
            **{LOSSES[loss]: self.losses[loss] for loss in range(1, LOSSES_END)},
        }
