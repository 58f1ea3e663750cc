"""Keep new connections away from a listener that is about to close, and take those that are under way to it.

Closing a listener resets what the kernel has accepted for it and nobody has taken yet: also what came a moment after
the last look at the queue. Linux lets a listener drop packets by a filter (socket(7), SO_ATTACH_FILTER): a SYN that is
dropped is sent again by the client's kernel within a second or so, and reaches whoever listens there then.
"""

import ctypes
import socket
import struct
import sys
from typing import Final

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h; Python does not name it
_FLAGS: Final = 13  # where they are in a TCP head, in bytes
_SYN, _SYN_OR_ACK = 0x02, 0x12
_INSTRUCTIONS: Final = (  # code, jump if true, jump if false, value: linux/filter.h
    (0x30, 0, 0, _FLAGS),  # load a byte
    (0x54, 0, 0, _SYN_OR_ACK),  # and
    (0x15, 0, 1, _SYN),  # equal: the next one, else the one after it
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # pass all of it
)


def hold_back_newcomers(listener: socket.socket) -> bool:
    """Have connections that begin from now on not begin here; False where the system does not let us.

    Connections that have begun go on, and those that are taken keep the filter, which lets all of theirs pass.
    """
    if not sys.platform.startswith("linux"):
        return False
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _INSTRUCTIONS)
    kept = ctypes.create_string_buffer(program, len(program))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(_INSTRUCTIONS), ctypes.addressof(kept))
        )
    except OSError:
        return False  # some kernels ask for a right that a relay need not have
    return True


def take_all(listener: socket.socket) -> list[socket.socket]:
    """All connections in the queue of a listener that does not block, none of them blocking."""
    accepted: list[socket.socket] = []
    while True:
        try:
            accepted.append(listener.accept()[0])
        except OSError:
            return accepted
        accepted[-1].setblocking(False)
