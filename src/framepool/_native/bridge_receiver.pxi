# Chunks off a subscription, each to the assembler of its stream.


cdef void on_chunk(void *clientd, const uint8_t *buffer, size_t length) noexcept nogil:
    (<ChunkReceiver>clientd).route(buffer, length)


cdef void on_torn(void *clientd) noexcept nogil:
    (<ChunkReceiver>clientd).retract()


@cython.final
@cython.no_gc_clear
cdef class ChunkReceiver:
    """Empties the payload subscription of a link, which nobody else may poll until `close`. One thread at a time.

    `max_message_bytes` bounds what a sender can make us keep that lets Aeron cut its messages into fragments.
    """

    cdef readonly Subscription subscription
    cdef readonly bint closed
    cdef list assemblers
    cdef PyObject **routes  # what `assemblers` holds
    cdef int32_t nroutes
    cdef PyObject *last  # whose the chunk before was, or NULL
    cdef int64_t now_ns
    cdef uint64_t counts[OTHER_STREAM + 1]
    cdef readonly uint64_t chunks

    def __cinit__(self, Subscription subscription not None, *, size_t max_message_bytes=65_535 + 313):
        self.closed = True
        self.assemblers = []
        subscription.divert(
            <fp_deliver_t><void *>on_chunk, <fp_retract_t><void *>on_torn, <void *>self, max_message_bytes)
        self.subscription = subscription
        self.closed = False

    def __dealloc__(self):
        self.close()
        PyMem_Free(self.routes)

    cpdef close(self):
        """Gives the subscription back; chunks are not taken any more."""
        if not self.closed:
            self.closed = True
            self.subscription.restore()

    def add(self, Assembler assembler not None):
        """Chunks of its stream go to this assembler. ValueError if the stream has one already."""
        if any(other.stream_id == assembler.stream_id for other in self.assemblers):
            raise ValueError(f"stream {assembler.stream_id} has an assembler already")
        self.redirect([*self.assemblers, assembler])

    def remove(self, uint32_t stream_id):
        """Chunks of the stream are dropped and counted from here on."""
        self.redirect([assembler for assembler in self.assemblers if assembler.stream_id != stream_id])

    cdef int redirect(self, list assemblers) except -1:
        cdef PyObject **routes
        cdef Py_ssize_t i
        for assembler in self.assemblers:
            (<Assembler>assembler).check_idle()
        routes = <PyObject **>PyMem_Calloc(len(assemblers) + 1, sizeof(PyObject *))
        if routes == NULL:
            raise MemoryError
        for i in range(len(assemblers)):
            routes[i] = <PyObject *>assemblers[i]
        PyMem_Free(self.routes)
        self.routes = routes
        self.nroutes = <int32_t>len(assemblers)
        self.last = NULL
        self.assemblers = assemblers
        return 0

    def poll(self, int64_t now_ns, Py_ssize_t limit=256):
        """Takes up to `limit` chunks, publishes the frames that they make whole and gives up those that are overdue;
        says how many chunks. Never waits. Raises where the subscription cannot be polled, and what a target raises,
        after all others were served."""
        cdef Py_ssize_t done = 0
        cdef int read
        cdef size_t batch = BATCH
        cdef list assemblers = self.assemblers
        cdef Assembler assembler
        if self.closed:
            raise ValueError("the receiver of chunks was closed")
        self.now_ns = now_ns
        for assembler in assemblers:
            assembler.check_idle()
            assembler.admit()
            assembler.expire_at(now_ns)
            if assembler.allowed:
                # What one C poll can complete finds slots of its own, as long as sequences follow each other.
                batch = min(batch, max(<size_t>1, <size_t>(assembler.ring.mask // 2)))
        while done < limit:
            read = self.poll_once(assemblers, min(batch, <size_t>(limit - done)))
            if read == 0:
                break
            done += read
        return done

    cdef int poll_once(self, list assemblers, size_t limit) except -1:
        cdef Assembler assembler
        cdef int read = 0
        cdef object error = None
        cdef list rings = []
        for assembler in assemblers:
            assembler.busy = True
            if assembler.ring is not None:
                assembler.ring.busy += 1
                rings.append(assembler.ring)
        try:
            read = self.subscription.poll_diverted(limit)
        finally:
            for assembler in assemblers:
                assembler.busy = False
            for ring in rings:
                (<RingWriter>ring).leave()
        for assembler in assemblers:
            try:
                assembler.settle()
            except BaseException as raised:
                error = error or raised
        if error is not None:
            raise error
        return read

    cdef void route(self, const uint8_t *message, size_t length) noexcept nogil:
        cdef Chunk chunk
        cdef int32_t i
        cdef int cause = decode_chunk(message, length, &chunk)
        self.chunks += 1
        if cause:
            self.last = NULL
            self.counts[cause] += 1
            return
        if self.last == NULL or (<Assembler>self.last).stream_id != chunk.stream_id:
            self.last = NULL
            for i in range(self.nroutes):
                if (<Assembler>self.routes[i]).stream_id == chunk.stream_id:
                    self.last = self.routes[i]
                    break
            else:
                self.counts[OTHER_STREAM] += 1
                return
        (<Assembler>self.last).take(
            &chunk, <uint64_t>self.subscription.receiver.reserved_value, self.now_ns)

    cdef void retract(self) noexcept nogil:
        if self.last != NULL:
            (<Assembler>self.last).retract()

    def statistics(self):
        """Messages taken, and those that were no assembler's by cause; the others are counted by their assembler."""
        return {
            "chunks": self.chunks,
            **{CAUSES[cause].lower(): self.counts[cause] for cause in range(1, OTHER_STREAM + 1)},
        }
