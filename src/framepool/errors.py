"""Every error framepool raises, in one tree.

Each message says what happened and, where there is something to do, what to do. Bad input from outside is
dropped and counted, never raised; what is raised here concerns the caller or the machine.

::

    FramepoolError
    ├── DecodeError                 bytes that are not the message they claim to be
    │   └── UnsupportedMessage      a schema, version, template or dialect we do not speak
    ├── EncodeError                 a value that its field cannot hold
    ├── RegionError                 a shared-memory region that must not be mapped
    │   ├── RegionUriError          the URI is not of the grammar of Wire 15.22
    │   ├── PathNotAllowed          the path leaves the allowed directories or passes a link
    │   ├── NotARegularFile         a directory, FIFO, device or socket
    │   ├── RegionSizeError         the file is shorter or longer than its layout
    │   ├── RegionOwnerError        owner or mode are not what the policy allows
    │   ├── SuperblockError         the superblock contradicts the announce or the layout
    │   └── HugepagesRequired       hugepages were demanded and the file has none
    ├── AllocationError             a region could not be made (no space, no permission)
    ├── TensorError                 a shape, dtype or stride that the header cannot describe
    ├── NoPoolFits                  the payload is larger than every pool's stride
    ├── SequenceError               a slot was claimed or committed out of turn
    ├── LeaseError                  the driver and this client
    │   ├── AttachRefused           the driver said no, or nothing, in time
    │   └── NotAttached             there is no lease right now; the client is trying to get one
    ├── DiscoveryError              nobody who knows the streams answered, or they could not
    │   ├── StreamNotFound          there is no such stream, as far as anybody knows
    │   ├── AmbiguousStream         several streams of this host have the name
    │   └── NotLocal                the stream is on another host, and nothing brings it here
    ├── FrameOverwritten            the producer lapped the reader of this frame
    ├── TransportError              Aeron refused or failed
    │   ├── AeronLibraryError       libaeron is missing or lacks a symbol
    │   ├── MediaDriverLost         the media driver died or gave this client up
    │   ├── MediaDriverRunning      another media driver owns the directory
    │   ├── TransportTimeout        the media driver did not answer in time
    │   ├── TransportBusy           the media driver cannot give it now, and may in a moment
    │   ├── TransportClosed         the object was closed by its owner
    │   └── ForkedError             used in a child made by fork
    ├── ServiceError                a command to a service
    │   ├── CommandRefused          the service said no; the message has its reason
    │   └── NoEcho                  nobody accepted the command in time
    ├── RecordingError              a recording that cannot be read, written or continued
    │   ├── RecordingInUse          another recorder writes it
    │   ├── RecordingDamaged        bytes of it are missing or not what was written
    │   │   └── IndexDamaged        the index beside a segment is; the segment may be whole
    │   └── FramesRemoved           retention removed what was asked for
    ├── LibraryMissing              an optional library is not installed
    └── ConfigurationError          a setting that cannot work
"""

from __future__ import annotations


class FramepoolError(Exception):
    """The root of the tree: catches everything framepool raises by itself.

    >>> try:
    ...     pool.consumer(10_999, timeout=0.2)
    ... except fp.FramepoolError as error:
    ...     print(type(error).__name__)
    AttachRefused
    """


class DecodeError(FramepoolError):
    """The bytes are not the message they claim to be. Raised by every decoder in `wire`, and nothing else."""


class UnsupportedMessage(DecodeError):
    """A well-formed header of a schema, version, template or block length that we do not speak."""


class EncodeError(FramepoolError):
    """A value does not fit the field it was given for."""


class RegionError(FramepoolError):
    """A shared-memory region that must not be mapped. Nothing of it was mapped."""


class RegionUriError(RegionError):
    """The region URI is not of the grammar of Wire 15.22."""


class PathNotAllowed(RegionError):
    """The path lies outside the allowed directories, or a link stands in its way."""


class NotARegularFile(RegionError):
    """The path names a directory, FIFO, device or socket."""


class RegionSizeError(RegionError):
    """The file is shorter or longer than its layout demands."""


class RegionOwnerError(RegionError):
    """The file's owner or mode is not what the policy allows."""


class SuperblockError(RegionError):
    """The superblock contradicts the announce, the layout or itself."""


class HugepagesRequired(RegionError):
    """The URI demands hugepages and the file is not backed by them."""


class AllocationError(FramepoolError):
    """A region could not be made; nothing half-made was left behind."""


class TensorError(FramepoolError):
    """A shape, dtype, order or stride that the tensor header cannot describe."""


class NoPoolFits(FramepoolError):
    """The payload is larger than the stride of every pool (Wire 9: the frame is dropped)."""


class SequenceError(FramepoolError):
    """A slot was claimed or committed out of turn."""


class LeaseError(FramepoolError):
    """Something between the driver and this client."""


class AttachRefused(LeaseError):
    """The driver said no, or nothing, in time; the message has its reason."""


class NotAttached(LeaseError):
    """There is no lease right now. The client goes on trying; the frame is counted as dropped."""


class DiscoveryError(FramepoolError):
    """Nobody who knows the streams answered, or they could not; the message says who was asked."""


class StreamNotFound(DiscoveryError):
    """There is no such stream, as far as anybody who answered knows; the message names those that are similar."""


class AmbiguousStream(DiscoveryError):
    """Several streams of this host have the name: choose one of `Pool.discover` and give that."""


class NotLocal(DiscoveryError):
    """The stream is on another host: its memory cannot be mapped here. A bridge makes it appear on this one."""


class FrameOverwritten(FramepoolError):
    """The producer lapped the reader: what was read of this frame is not to be used.

    >>> sent = camera.publish_batch([image] * 256)          # the ring goes around
    >>> try:
    ...     with frame as old:
    ...         total = old.sum()                               # not to be used
    ... except fp.FrameOverwritten:
    ...     print("too late")
    too late
    """


class TransportError(FramepoolError):
    """Aeron refused or failed."""


class AeronLibraryError(TransportError):
    """libaeron is missing or lacks a symbol; the message names what is missing."""


class MediaDriverLost(TransportError):
    """The media driver died, was closed, or gave this client up; reconnect when it is back."""


class MediaDriverRunning(TransportError):
    """Another media driver owns the directory; use that one or choose another directory."""


class TransportTimeout(TransportError):
    """The media driver did not answer in time."""


class TransportBusy(TransportError):
    """The media driver cannot give it now, and may in a moment: a network address that its last user is leaving."""


class TransportClosed(TransportError):
    """The object was closed by its owner and cannot be used any more."""


class ForkedError(TransportError):
    """The object was inherited through fork; start processes with spawn and connect in each."""


class ServiceError(FramepoolError):
    """A command to a service did not work."""


class CommandRefused(ServiceError):
    """A service does not accept a command; the message has its reason. Raised by its handlers too, to say no."""


class NoEcho(ServiceError):
    """Neither an echo nor an error came back in time: the service is not there, or it is stopped."""


class RecordingError(FramepoolError):
    """A recording that cannot be read, written or continued."""


class RecordingInUse(RecordingError):
    """Another recorder writes this recording."""


class RecordingDamaged(RecordingError):
    """Bytes of the recording are missing or not what was written; `framepool recordings verify` finds all of them."""


class IndexDamaged(RecordingDamaged):
    """The index beside a segment cannot be read, or leads out of the segment; the segment itself may be whole."""


class FramesRemoved(RecordingError):
    """Retention removed the frames that were asked for; the message says where the recording begins now."""


class LibraryMissing(FramepoolError):
    """An optional library is not installed; the message says which one and how to get it."""


class ConfigurationError(FramepoolError):
    """A setting that cannot work; the message names it."""
