"""Becomes another program that cannot outlive the process that asked for it.

Run by path with only the standard library (`python -I -S launch.py ... -- command`), because the work
between fork and exec must not run inside a threaded parent. In order: drop to an account, keep the one
capability that lets it pass closed parent folders where that was asked for, ask for the parent-death
signal (which a change of user would clear, so it comes last), and replace itself by the command.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def main(arguments: list[str]) -> None:
    separator = arguments.index("--")
    parent, death_signal, account, search = arguments[:separator]
    command = arguments[separator + 1 :]
    linux = sys.platform.startswith("linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if account != "-":
        uid, gid = (int(part) for part in account.split(":"))
        if search == "search" and linux:
            # With the first, access(2) honours the capability too, which PostgreSQL asks about its own binaries;
            # the second alone is what remains where a container has taken CAP_SETPCAP away.
            libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
            libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        if search == "search" and linux:
            _keep_search(libc)
    if linux:
        libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the process that asked for this one is gone")
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error}")


def _keep_search(libc: ctypes.CDLL) -> None:
    """Keep the smaller of the two capabilities that open closed folders, through exec."""
    for capability in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        header = _Header(CAPABILITY_VERSION_3, 0)
        data = (_Data * 2)()
        bit = 1 << capability
        data[0].effective = data[0].permitted = data[0].inheritable = bit
        if libc.capset(ctypes.byref(header), ctypes.byref(data)) == 0:
            libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0)
            return


if __name__ == "__main__":
    main(sys.argv[1:])
