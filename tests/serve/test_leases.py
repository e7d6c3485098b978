"""Cores that no two engines have. Tests leases.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from suffice.serve.cores import found
from suffice.serve.leases import Lease

HOLDS = """
import sys, time
from pathlib import Path
from suffice.serve.leases import Lease
lease = Lease(1, Path(sys.argv[1]))
print(lease.share.cpus, flush=True)
time.sleep(60)
"""


def test_no_two_leases_share_a_core(tmp_path: Path) -> None:
    cores = found(os.sched_getaffinity(0))
    leases = [Lease(1, tmp_path) for _ in cores]
    shares = [lease.share for lease in leases]
    assert all(share is not None and share.threads == 1 for share in shares)
    cpus = [cpu for share in shares if share is not None for cpu in share.cpus]
    assert sorted(cpus) == sorted(cpu for core in cores for cpu in core.cpus)
    assert Lease(1, tmp_path).share is None, "all cores are leased"
    leases[0].close()
    again = Lease(1, tmp_path).share
    assert again is not None and again == shares[0]


def test_a_lease_is_whole_or_none(tmp_path: Path) -> None:
    cores = found(os.sched_getaffinity(0))
    assert Lease(len(cores) + 1, tmp_path).share is None
    whole = Lease(len(cores), tmp_path)
    assert whole.share is not None and whole.share.threads == len(cores)
    whole.close()


def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline().startswith("(")
        assert Lease(len(found(os.sched_getaffinity(0))), tmp_path).share is None
        other.kill()
    assert Lease(len(found(os.sched_getaffinity(0))), tmp_path).share is not None
