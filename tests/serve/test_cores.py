"""Shares of cores: cores.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffice import native
from suffice.errors import InputError
from suffice.serve.cores import Core, found, shares, split


def machine(nodes: int, cores: int, siblings: int = 1) -> list[Core]:
    size = cores * siblings
    return [
        Core(node, tuple(range(node * size + at * siblings, node * size + (at + 1) * siblings)))
        for node in range(nodes)
        for at in range(cores)
    ]


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 2), st.data())
def test_shares_are_apart_and_about_equal(
    nodes: int, cores: int, siblings: int, data: st.DataObject
) -> None:
    all_cores = machine(nodes, cores, siblings)
    count = data.draw(st.integers(1, nodes * cores * siblings))
    parts = split(all_cores, count)
    cpus = [cpu for part in parts for cpu in part]
    assert len(parts) == count and all(parts)
    assert sorted(cpus) == list(range(nodes * cores * siblings)), "each once, none left"
    if count % nodes == 0 and count <= nodes * cores:
        whole = {core.cpus: core.node for core in all_cores}
        for part in parts:
            own = [cpus for cpus in whole if set(cpus) & set(part)]
            assert all(set(cpus) <= set(part) for cpus in own), "siblings stay together"
            assert len({whole[cpus] for cpus in own}) == 1, "a share is of one node"
        assert max(map(len, parts)) - min(map(len, parts)) <= siblings


def test_nodes_of_other_sizes_get_shares_by_their_size() -> None:
    cores = [*machine(1, 6), *(Core(1, (6 + at,)) for at in range(2))]
    assert split(cores, 4) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert split(machine(3, 2), 2) == [(0, 1), (2, 3, 4, 5)]


def test_the_system_is_read(tmp_path: Path) -> None:
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(cpus + "\n")
    for cpu in range(8):
        (tmp_path / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        low = cpu % 4
        (tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{low},{low + 4}\n")
    assert found(range(8), tmp_path) == [
        Core(0, (0, 4)), Core(0, (1, 5)), Core(1, (2, 6)), Core(1, (3, 7)),
    ]  # fmt: skip
    assert found([1, 2, 6], tmp_path) == [Core(0, (1,)), Core(1, (2, 6))], "only what is allowed"
    assert found([3, 9], tmp_path / "nothing") == [Core(0, (3,)), Core(0, (9,))]


def test_shares_of_this_machine() -> None:
    assert shares(1) == [None]
    usable = native.cores()
    parts = shares(usable)
    assert all(part is not None and part.threads == 1 for part in parts)
    cpus = [cpu for part in parts if part is not None for cpu in part.cpus]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))
    with pytest.raises(InputError, match=f"instances={usable + 1}: must be at most the {usable}"):
        shares(usable + 1)
