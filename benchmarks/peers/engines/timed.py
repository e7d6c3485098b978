"""Runs a command once and prints its times and its peak memory; fresh.py starts it.

A process's peak memory, as the system counts it, begins with that of the process that started it.
This one is no larger than any that it measures: it imports little, not even json, and runs without
site packages. It prints a dictionary as Python writes it.
"""

import os
import sys
import time


def main() -> None:
    """Run the command of the arguments; its standard error stays where it was."""
    command = sys.argv[1:]
    readable, writable = os.pipe()
    began = time.perf_counter()
    child = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writable, 1)]
    )
    os.close(writable)
    said, first = b"", None
    while part := os.read(readable, 1 << 16):
        if first is None:
            first = time.perf_counter() - began
        said += part
    _, status, usage = os.wait4(child, 0)
    found = {
        "seconds": time.perf_counter() - began,
        "first_seconds": first,  # until the first byte of output
        "peak_bytes": usage.ru_maxrss * 1024,
        "status": os.waitstatus_to_exitcode(status),
        "said": said.decode(errors="replace"),
    }
    print(repr(found))


if __name__ == "__main__":
    main()
