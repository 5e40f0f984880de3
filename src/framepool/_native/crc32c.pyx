# cython: boundscheck=False, wraparound=False
"""CRC32C in C, for blobs (Wire 15.9) and recordings: with the processor's instruction where it has one.

The readable twin is `framepool.client.crc32c`; tests compare the two.
"""

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

cdef extern from "crc32c.h":
    ctypedef uint32_t (*fp_crc_fn)(uint32_t state, const unsigned char *data, size_t length) noexcept nogil
    void fp_crc32c_init() noexcept
    uint32_t fp_crc_portable(uint32_t state, const unsigned char *data, size_t length) noexcept nogil
    fp_crc_fn fp_crc_best
    const char *fp_crc_best_name

fp_crc32c_init()

cdef enum:
    # A sum over so much releases the interpreter; below it, the release costs more than it gives.
    RELEASE_FROM = 65536

IMPLEMENTATION = fp_crc_best_name.decode()


cdef uint32_t summed(data, uint32_t crc, fp_crc_fn run) except? 0:
    cdef Py_buffer view
    cdef uint32_t state = ~crc
    PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
    if view.len < RELEASE_FROM:
        state = run(state, <const unsigned char *>view.buf, view.len)
    else:
        with nogil:
            state = run(state, <const unsigned char *>view.buf, view.len)
    PyBuffer_Release(&view)
    return ~state


def crc32c(data, uint32_t crc=0):
    """The CRC32C of `data`, or of what `crc` is the CRC32C of with `data` behind it."""
    return summed(data, crc, fp_crc_best)


def crc32c_portable(data, uint32_t crc=0):
    """The same without the processor's instruction, as machines that have none get it."""
    return summed(data, crc, fp_crc_portable)
