# Which way long payloads are copied.

cdef enum:
    # Until anything was tried: frames this long pass the cache by, and a quarter as long ones in a ring of more than a
    # core's share of it.
    LONG_FRAME = 4 * 1024 * 1024
    PASSING_FRAME = 1024 * 1024
    PASSING_RING = 32 * 1024 * 1024
    # Copies that are timed before a comparison; the quickest of them counts, because others were interrupted.
    TIMED = 3
    # Between two trials come so many times as many other frames as a trial takes: at first, and at the most.
    FIRST_REST = 4
    LAST_REST = 256

WAYS = ("plain", "ahead", "passing", "string")


@cython.final
cdef class CopyChoice:
    """Which of the ways of `payload.h` the next long payload of a ring takes: the one that was the quickest lately.

    What is quickest depends on the caches, the other streams and the readers, none of which a producer can ask. So now
    and then a few frames go another way and are timed, less and less often while nothing comes of it: at last one in 257.
    A frame of another length begins anew. Readers find a frame that passed the cache only in memory, so that way has to
    be a quarter quicker for its writer, unless the frame is so long that they would find little of it elsewhere.
    """

    cdef readonly uint64_t slots
    cdef readonly uint64_t nbytes
    cdef readonly bint trying
    cdef readonly bint timed
    """Whether the time of the next copy is wanted."""
    cdef fp_way chosen
    cdef fp_way rival
    cdef uint64_t left
    cdef uint64_t rest
    cdef int64_t own_ns
    cdef int64_t rival_ns

    def __cinit__(self, uint64_t slots):
        self.slots = slots

    @property
    def way(self):
        """The chosen one, by name."""
        return WAYS[<int>self.chosen]

    def copy(self, uint64_t nbytes, uint64_t stride, took):
        """As the writer does for a frame: `took` is called with the name of the way, and says how many ns it took."""
        cdef fp_way way = self.next_way(nbytes, stride)
        self.took(took(WAYS[<int>way]))

    cdef fp_way next_way(self, uint64_t nbytes, uint64_t stride) noexcept:
        if nbytes != self.nbytes:
            self.nbytes = nbytes
            self.chosen = FP_PLAIN
            if nbytes >= LONG_FRAME or (nbytes >= PASSING_FRAME and self.slots * stride >= PASSING_RING):
                self.chosen = FP_PASSING
            self.rival = FP_AHEAD
            self.rest = FIRST_REST
            self.stay()
        return self.rival if self.trying else self.chosen

    cdef void took(self, int64_t ns) noexcept:
        """The copy whose way was asked for last took so long, if that was wanted."""
        if self.timed and self.trying:
            self.rival_ns = min(self.rival_ns, ns)
        elif self.timed:
            self.own_ns = min(self.own_ns, ns)
        self.left -= 1
        self.timed = self.left <= TIMED
        if self.left:
            return
        if self.trying:
            self.decide()
        else:
            self.trying = True
            self.rival_ns = NEVER
            self.left = self.trial()
            self.timed = False

    cdef uint64_t trial(self) noexcept:
        """Frames of one: what passes the cache by leaves slots there that are none, so the others need a lap first."""
        return TIMED + (self.slots if self.chosen == FP_PASSING else 1)

    cdef void stay(self) noexcept:
        self.trying = False
        self.own_ns = NEVER
        self.left = self.rest * self.trial()
        self.timed = False

    cdef void decide(self) noexcept:
        if self.price(self.rival, self.rival_ns) < self.price(self.chosen, self.own_ns) * 15 // 16:
            self.chosen = self.rival
            self.rest = FIRST_REST
        else:
            self.rest = min(self.rest * 2, <uint64_t>LAST_REST)
        self.rival = <fp_way>((self.rival + 1) % FP_WAYS)
        if self.rival == self.chosen:
            self.rival = <fp_way>((self.rival + 1) % FP_WAYS)
        self.stay()

    cdef int64_t price(self, fp_way way, int64_t ns) noexcept:
        return ns + ns // 4 if way == FP_PASSING and self.nbytes < LONG_FRAME else ns
