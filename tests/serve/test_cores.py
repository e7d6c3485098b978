"""Shares and leases of cores: cores.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffice import native
from suffice.errors import InputError
from suffice.serve.processes import cores
from suffice.serve.processes.cores import (
    Core,
    Leases,
    Share,
    default_instances,
    found,
    lease,
    split,
)


def machine(nodes: int, count: int, siblings: int = 1) -> list[Core]:
    size = count * siblings
    return [
        Core(node, tuple(range(node * size + at * siblings, node * size + (at + 1) * siblings)))
        for node in range(nodes)
        for at in range(count)
    ]


def system(folder: Path, nodes: dict[int, str], siblings: int = 1, online: str = "") -> Path:
    """A /sys/devices/system: nodes with their processors; those n apart share a core."""
    all_cpus: set[int] = set()
    for node, cpus in nodes.items():
        (folder / f"node/node{node}").mkdir(parents=True)
        path = folder / f"node/node{node}/cpulist"
        path.write_text(cpus + "\n")
        all_cpus |= cores._numbers(path)
    apart = len(all_cpus) // siblings
    for cpu in all_cpus:
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        own = ",".join(str(cpu % apart + turn * apart) for turn in range(siblings))
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(own + "\n")
    if online:
        (folder / "cpu/online").write_text(online + "\n")
    return folder


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 2), st.data())
def test_shares_are_apart_and_about_equal(
    nodes: int, count: int, siblings: int, data: st.DataObject
) -> None:
    all_cores = machine(nodes, count, siblings)
    asked = data.draw(st.integers(1, nodes * count * siblings))
    shared = split(all_cores, asked)
    parts = [cores._whole(part) for part in shared]
    cpus = [cpu for part in parts for cpu in part]
    assert len(parts) == asked and all(parts)
    assert sorted(cpus) == list(range(nodes * count * siblings)), "each once, none left"
    if asked % nodes == 0 and asked <= nodes * count:
        whole = {core.cpus: core.node for core in all_cores}
        for part in parts:
            own = [cpus for cpus in whole if set(cpus) & set(part)]
            assert all(set(cpus) <= set(part) for cpus in own), "siblings stay together"
            assert len({whole[cpus] for cpus in own}) == 1, "a share is of one node"
        assert max(map(len, parts)) - min(map(len, parts)) <= siblings


def test_nodes_of_other_sizes_get_shares_by_their_size() -> None:
    both = [*machine(1, 6), *(Core(1, (6 + at,)) for at in range(2))]
    whole = cores._whole
    assert [whole(part) for part in split(both, 4)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [whole(part) for part in split(machine(3, 2), 2)] == [(0, 1), (2, 3, 4, 5)]


def test_the_system_is_read(tmp_path: Path) -> None:
    tree = system(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, siblings=2)
    assert found(range(8), tree) == [
        Core(0, (0, 4)), Core(0, (1, 5)), Core(1, (2, 6)), Core(1, (3, 7)),
    ]  # fmt: skip
    assert found([1, 2, 6], tree) == [Core(0, (1,)), Core(1, (2, 6))], "only what is allowed"
    assert found([3, 9], tmp_path / "nothing") == [Core(0, (3,)), Core(0, (9,))]


def test_processors_that_are_off_are_left_out(tmp_path: Path) -> None:
    tree = system(tmp_path, {0: "0-3"}, online="0,2-3")
    assert found(range(4), tree) == [Core(0, (0,)), Core(0, (2,)), Core(0, (3,))]


class Machine:
    """A machine; servers lease its cores."""

    def __init__(self, folder: Path, nodes: dict[int, str], siblings: int = 1) -> None:
        self.system = system(folder / "sys", nodes, siblings)
        self.folder = folder / "leases"
        self.cpus = {cpu for core in found(range(64), self.system) for cpu in core.cpus}
        self.cpus = {cpu for cpu in self.cpus if (self.system / f"cpu/cpu{cpu}").exists()}

    def lease(self, count: int, threads: int | None = None, **more: Any) -> Leases:
        given = {"allowed": self.cpus, "quota": len(self.cpus), **more}
        return lease(count, threads, system=self.system, folder=self.folder, **given)


def test_engines_get_a_thread_on_each_core_of_a_node(tmp_path: Path) -> None:
    two = Machine(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, siblings=2)
    taken = two.lease(2)
    assert taken.shares == [Share((0, 1, 2, 3), 4, 0), Share((4, 5, 6, 7), 4, 1)]
    taken.close()
    taken = two.lease(4, 1)
    assert [share.cpus for share in taken.shares] == [(0,), (2,), (4,), (6,)]
    taken.close()
    taken = two.lease(2, 6)
    assert taken.shares[1] == Share((4, 5, 6, 7, 12, 13), 6, 1), "then second threads"
    taken.close()
    assert two.lease(1, allowed={1, 5, 9}, quota=3).shares == [Share((1, 5), 2, 0)]


def test_servers_take_cores_that_are_free(tmp_path: Path) -> None:
    one = Machine(tmp_path, {0: "0-7"})
    first, second = one.lease(1, 3), one.lease(2, 1)
    assert [share.cpus for share in first.shares] == [(0, 1, 2)] and first.notes == []
    assert [share.cpus for share in second.shares] == [(3,), (5,)]
    pid = os.getpid()
    assert second.notes == [f"3 of 8 cores are leased by process {pid}: this server has the others"]
    rest = one.lease(1)
    assert rest.shares == [Share((4, 6, 7), 3, 0)], "all that are left"
    first.close()
    assert one.lease(1).shares == [Share((0, 1, 2), 3, 0)]


def test_where_too_few_are_free_cores_are_shared_with_a_line(tmp_path: Path) -> None:
    one = Machine(tmp_path, {0: "0-3"})
    first = one.lease(1)
    second = one.lease(1)
    assert second.shares == [Share((), 4, 0)], "it may use all, like before there were leases"
    (note,) = second.notes
    assert note.startswith(f"4 of 4 cores are leased by process {os.getpid()}: too few are left")
    assert "--instances and -t" in note and "\n" not in note
    several = one.lease(2, 1)
    assert [share.cpus for share in several.shares] == [(0, 1), (2, 3)] and several.notes
    first.close()
    most = one.lease(1, 3)
    both = one.lease(2, 1)  # one core is free
    assert [share.cpus for share in both.shares] == [(0, 1), (2, 3)]
    assert "too few are left" in both.notes[0]
    most.close()
    both.close()
    assert one.lease(1).notes == [], "who shared had no lease of what was taken"


def test_threads_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    two = Machine(tmp_path, {0: "0-3", 1: "4-7"})
    with pytest.raises(InputError, match="threads=5: must be between 1 and 4 for each of 2 inst"):
        two.lease(2, 5)
    with pytest.raises(InputError, match="threads=9: must be between 1 and 8: 8 cores"):
        two.lease(1, 9)
    with pytest.raises(InputError, match="instances=9: must be at most the 8 cores"):
        two.lease(9)
    assert [share.cpus for share in two.lease(8).shares] == [(cpu,) for cpu in range(8)]


def test_a_quota_of_time_leases_no_cores(tmp_path: Path) -> None:
    """Servers in containers would all take the first cores."""
    one = Machine(tmp_path, {0: "0-15"})
    taken = one.lease(2, quota=4)
    assert [share.threads for share in taken.shares] == [2, 2]
    assert [share.cpus for share in taken.shares] == [tuple(range(8)), tuple(range(8, 16))]
    assert taken.locks == [] and one.lease(1, quota=4).shares == [Share((), 4, 0)]


def test_a_lease_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    one = Machine(tmp_path, {0: "0-3"})
    code = (
        "import sys; from pathlib import Path; from suffice.serve.processes.cores import lease\n"
        "kept = lease(1, 2, system=Path(sys.argv[1]), folder=Path(sys.argv[2]),"
        " allowed=range(4), quota=4)\n"
        "print('leased', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(one.system), str(one.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"leased\n"
        taken = one.lease(1)
        assert taken.shares == [Share((2, 3), 2, 0)]
        assert f"leased by process {other.pid}:" in taken.notes[0]
        taken.close()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert one.lease(1).shares == [Share((0, 1, 2, 3), 4, 0)]


def test_without_a_folder_for_locks_a_server_starts_with_a_line(tmp_path: Path) -> None:
    one = Machine(tmp_path, {0: "0-3"})
    one.folder.write_text("a file")
    taken = one.lease(2)
    assert [share.cpus for share in taken.shares] == [(0, 1), (2, 3)]
    (note,) = taken.notes
    assert "cores are not leased" in note


def test_shares_of_this_machine(tmp_path: Path) -> None:
    usable = native.cores()
    parts = lease(usable, folder=tmp_path).shares
    assert all(part.threads == 1 for part in parts)
    assert {cpu for part in parts for cpu in part.cpus} <= os.sched_getaffinity(0)
    with pytest.raises(InputError, match=f"instances={usable + 1}: must be at most the {usable}"):
        lease(usable + 1, folder=tmp_path)


def test_there_is_an_engine_for_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = system(tmp_path, {0: "0-3", 1: "4-7"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(native, "cores", lambda: 8)
    assert default_instances(None, tree) == default_instances(4, tree) == 2
    assert default_instances(6, tree) == 1, "their threads do not fit on a node"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(native, "cores", lambda: 2)
    assert default_instances(None, tree) == 1
