"""A file to put a loop device on, which writes down what is written to it, and when it is flushed.

It is a file in user space: this speaks the protocol of the kernel's ``fuse.h``, needs root, and no library.
"""

import ctypes
import errno
import os
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

_WRITE_BYTES = 1 << 17
# Operations of fuse.h.
_INIT, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _FSYNC = 26, 3, 4, 14, 15, 16, 20
_DONE = (_FSYNC, 18, 25, 38)  # also release, flush, destroy
_UNANSWERED = (2, 36, 42)  # forget, interrupt, forget many


@dataclass
class Epoch:
    """What the device did between two flushes, and how many batches were reported as saved meanwhile."""

    writes: list[tuple[int, bytes]] = field(default_factory=list)
    reported: int = 0


class Device:
    """The file ``place``, which reads and writes as ``image`` does, and writes down what was asked of it."""

    def __init__(self, image: Path, place: Path) -> None:
        self.epochs = [Epoch()]
        self._image = os.open(image, os.O_RDWR)
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        place.touch()
        options = f"fd={self._fuse},rootmode=100644,user_id=0,group_id=0".encode()
        if ctypes.CDLL(None).mount(b"recorder", os.fsencode(place), b"fuse", 0, options):
            raise OSError("FUSE does not mount")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fuse, _WRITE_BYTES + (1 << 16))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue  # the request was given up
                if error.errno != errno.ENODEV:
                    raise
                os.close(self._fuse)  # unmounted
                os.close(self._image)
                return
            _, operation, unique = struct.unpack_from("<IIQ", request)
            if operation not in _UNANSWERED:
                answer = self._answer(operation, memoryview(request)[40:])
                code, data = (-errno.ENOSYS, b"") if answer is None else (0, answer)
                os.write(self._fuse, struct.pack("<IiQ", 16 + len(data), code, unique) + data)

    def _answer(self, operation: int, body: memoryview) -> bytes | None:
        """None for what is not done here, such as discards."""
        answer = b"" if operation in _DONE else None
        _, offset, size = struct.unpack_from("<QQI", body) if operation in (_READ, _WRITE) else (0, 0, 0)
        if operation == _INIT:
            answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 1 << 5, 16, 12, _WRITE_BYTES, 1, *[0] * 10)
        elif operation in (_GETATTR, _SETATTR):
            held = os.fstat(self._image).st_size
            answer = struct.pack("<QII6Q10I", 0, 0, 0, 1, held, held // 512, *[0] * 6, 0o100644, 1, *[0] * 3, 4096, 0)
        elif operation == _OPEN:
            answer = struct.pack("<QII", 1, 1, 0)  # direct: not through a page cache of this file
        elif operation == _READ:
            answer = os.pread(self._image, size, offset)
        elif operation == _WRITE:
            data = bytes(body[40 : 40 + size])
            os.pwrite(self._image, data, offset)
            self.epochs[-1].writes.append((offset, data))
            answer = struct.pack("<II", size, 0)
        elif operation == _FSYNC:
            self.epochs.append(Epoch())
        return answer
