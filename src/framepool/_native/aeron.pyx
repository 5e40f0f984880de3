# cython: language_level=3, boundscheck=False, wraparound=False
"""Aeron's C client and media driver, bound by name at run time. Everything above it speaks through `transport`.

The rules that make it safe:

* The interpreter's lock is held in every call that touches a C object of a client (add, offer, poll, close), so two
  Python threads never meet inside one. It is released only where nothing shared is touched: while connecting, while
  the conductor thread is joined, while a drain is waited for; and by whoever holds a publication or a subscription
  (`Child.hold`), which is not freed before it is let go again; and while ears wait, who look at a subscription under
  a lock that its polls take too, and find no pointer once it is closed. Two kinds of threads of our own run without it: a
  drain polls its subscription, which nobody else does meanwhile, and heartbeats are offered on shared publications, which
  Aeron allows at any time. Both have let go of the C object before it is freed.
* The C client frees its children when it closes. So a client knows its children, takes their pointers away first and
  only then frees them; a child without its pointer raises, it never crashes.
* No Python runs inside a C poll, and no Python runs in Aeron's threads: no image callbacks, an error handler that
  only records, messages copied out before a handler sees them.
* A child made by fork owns nothing: its objects raise `ForkedError` and are left as they are.

The parts: the client and what it can hold (aeron_client.pxi), publications and claims (aeron_publication.pxi),
heartbeats (aeron_heartbeat.pxi), subscriptions, drains and ears (aeron_subscription.pxi), the media driver
(aeron_driver.pxi); in C, the table of functions (aeron_api.h), the receiving side (aeron_receive.h), pages of a
log ahead of its messages (aeron_ahead.h), the drain (aeron_drain.h), ears (aeron_ears.h), the thread of heartbeats
(aeron_heartbeat.h), how Aeron's threads wait (aeron_idle.h) and when naps end (nap.h).
"""

import importlib.machinery
import importlib.util
import os
import re
from collections import namedtuple

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_New
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport Py_XDECREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset, strerror

from framepool._native.aeron_api cimport *

from framepool.errors import (
    AeronLibraryError,
    ForkedError,
    MediaDriverLost,
    TransportBusy,
    TransportClosed,
    TransportError,
    TransportTimeout,
)

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *filename, int flags)
    char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int initval, int flags)
    int EFD_CLOEXEC
    int EFD_NONBLOCK

cdef extern from "unistd.h" nogil:
    int close_fd "close"(int fd)

cdef extern from "payload.h" nogil:
    void fp_expect_writes(const unsigned char *at, size_t nbytes)

cdef enum:
    DATA_HEADER_BYTES = 32


def library_path():
    """The shared object that carries Aeron: FRAMEPOOL_AERON_LIBRARY, else the one in the wheel of pyaeron."""
    named = os.environ.get("FRAMEPOOL_AERON_LIBRARY")
    if named:
        return named
    spec = importlib.util.find_spec("pyaeron")  # finds the package without running it
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            candidate = os.path.join(directory, "_pyaeron" + suffix)
            if os.path.isfile(candidate):
                return candidate
    raise AeronLibraryError(
        "no Aeron library: install pyaeron==0.1.0, or name a build of libaeron in FRAMEPOOL_AERON_LIBRARY"
    )


cdef load_library():
    cdef char missing[16384]
    cdef bytes path = os.fsencode(library_path())
    cdef void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise AeronLibraryError(f"cannot load {os.fsdecode(path)}: {dlerror().decode(errors='replace')}")
    cdef int lacking = fp_api_load(library, missing, sizeof(missing))
    if lacking:
        names = (<bytes>missing).decode().split()
        raise AeronLibraryError(
            f"{os.fsdecode(path)} lacks {lacking} of the functions that framepool needs: {', '.join(names)}"
        )
    return os.fsdecode(path)


LIBRARY = load_library()
if fp_watch_forks() != 0 or fp_standby_watch_forks() != 0:
    raise AeronLibraryError("pthread_atfork failed")
if fp_idle_export() != 0:
    raise AeronLibraryError("the idle strategies cannot be shown to Aeron")


def aeron_version():
    """What the loaded library says of itself."""
    return version_full().decode(errors="replace")


cdef str tidy(bytes message):
    """Aeron's stack of messages as one line without its file names."""
    lines = [re.sub(r"^\[[^\]]*\]\s*", "", line).strip() for line in message.decode(errors="replace").splitlines()]
    return "; ".join(line for line in lines if line) or "no reason given"


cdef tuple take_error():
    """This thread's last Aeron error, cleared so that it cannot turn up in a later one."""
    cdef int code = errcode()
    text = tidy(<bytes>errmsg())
    err_clear()
    return (code if code >= 0 else -code), text


include "aeron_client.pxi"
include "aeron_publication.pxi"
include "aeron_heartbeat.pxi"
include "aeron_subscription.pxi"
include "aeron_driver.pxi"
