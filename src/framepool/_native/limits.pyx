# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What the machine can do at the best, measured without Python: the ground that benchmarks stand on.

Copies into shared memory, a word that one process writes and another spins on, and an Aeron message on its way from
one process to the other, each timed in C.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from framepool._native.aeron cimport AnyPublication, Drain

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <stdint.h>
    #include <time.h>

    static inline int64_t fp_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static inline int64_t fp_load(const void *at) {
        return atomic_load_explicit((const _Atomic int64_t *)at, memory_order_acquire);
    }
    static inline void fp_store(void *at, int64_t value) {
        atomic_store_explicit((_Atomic int64_t *)at, value, memory_order_release);
    }
    """
    int64_t fp_now() noexcept nogil
    int64_t fp_load(const void *at) noexcept nogil
    void fp_store(void *at, int64_t value) noexcept nogil


def copies(uint8_t[::1] target, const uint8_t[::1] source, int64_t[::1] out, int64_t interval_ns=0):
    """Copies `source` to one place of `target` after the other, timing each into `out`: once each interval."""
    cdef Py_ssize_t size = source.shape[0]
    cdef Py_ssize_t places = target.shape[0] // size
    cdef Py_ssize_t i
    cdef int64_t start, due
    if size == 0 or places == 0:
        raise ValueError("the target holds no copy of the source")
    with nogil:
        due = fp_now()
        for i in range(out.shape[0]):
            due += interval_ns
            while interval_ns and fp_now() < due:
                pass
            start = fp_now()
            memcpy(&target[(i % places) * size], &source[0], size)
            out[i] = fp_now() - start


def spin_send(int64_t[::1] word, Py_ssize_t count, int64_t interval_ns):
    """Writes the time into `word` once each interval, so many times; then -1."""
    cdef Py_ssize_t i
    cdef int64_t due
    with nogil:
        due = fp_now()
        for i in range(count):
            due += interval_ns
            while fp_now() < due:
                pass
            fp_store(&word[0], fp_now())
        fp_store(&word[0], -1)


def spin_receive(int64_t[::1] word, int64_t[::1] out, int64_t timeout_ns):
    """How old each time written into `word` was when it was seen; how many were seen before -1 or the timeout."""
    cdef Py_ssize_t seen = 0
    cdef int64_t last = fp_load(&word[0]), now, value
    cdef int64_t until = fp_now() + timeout_ns
    with nogil:
        while seen < out.shape[0]:
            value = fp_load(&word[0])
            now = fp_now()
            if value != last:
                last = value
                if value == -1:
                    break
                out[seen] = now - value
                seen += 1
            elif now > until:
                break
    return seen


def aeron_send(AnyPublication publication not None, Py_ssize_t nbytes, Py_ssize_t count, int64_t interval_ns):
    """Claims, fills and commits a message of so many bytes with the time in front once each interval, which is the
    quickest way; how many Aeron took."""
    cdef uint8_t[::1] message = bytearray(nbytes)
    cdef Py_ssize_t i
    cdef Py_ssize_t sent = 0
    cdef int64_t due = fp_now()
    cdef int64_t now
    publication.check_sender()
    if nbytes < 8:
        raise ValueError("a message has to hold the time")
    for i in range(count):
        due += interval_ns
        while fp_now() < due:
            pass
        now = fp_now()
        memcpy(&message[0], &now, 8)
        sent += publication.tell(&message[0], nbytes) >= 0
    return sent


def aeron_receive(Drain drain not None, int64_t[::1] out, int64_t timeout_ns):
    """How old each such message was when the time was read in it; how many came before `out` was full or nothing came
    for `timeout_ns`."""
    cdef uint8_t record[16]
    cdef Py_ssize_t seen = 0
    cdef int64_t sent, now
    cdef int64_t until = fp_now() + timeout_ns
    while seen < out.shape[0]:
        if drain.take_records(record, 8, 1):
            now = fp_now()
            memcpy(&sent, record + 8, 8)
            out[seen] = now - sent
            seen += 1
            until = now + timeout_ns
        elif fp_now() > until:
            drain.check()
            break
    return seen
