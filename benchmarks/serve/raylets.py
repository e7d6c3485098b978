"""A Ray cluster of several nodes on this machine; each can be killed as a whole."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.serve.servers import free_port

STORE_BYTES = 80 << 20
TRIES = 4
QUIET = {  # of Ray; nothing leaves the machine, and no dashboard or usage report is made
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


class Raylets:
    """A head node without CPUs, and nodes of some CPUs each."""

    def __init__(self, nodes: int, cpus: int = 1) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        # Without handlers of signals, which only the main thread may set: `add` runs in any.
        self.cluster = Cluster(shutdown_at_exit=False)
        head = {"num_cpus": 0, "include_dashboard": False}
        self._started(**head)
        self.nodes: dict[str, Any] = {}
        for _ in range(nodes):
            self.add()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> str:
        """Add a node; return its id."""
        node = self._started(num_cpus=self._cpus)
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def _started(self, **given: Any) -> Any:
        """Start a node; again, if a busy machine does not do it in the time that Ray allows."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(Exception):
                return self.cluster.add_node(object_store_memory=STORE_BYTES, **given)
        return self.cluster.add_node(object_store_memory=STORE_BYTES, **given)

    def kill(self, node: str) -> int:
        """Kill all processes of a node at once, as a power cut does; return how many."""
        top = self.nodes.pop(node).all_processes["raylet"][0].process.pid
        pids = [top, *descendants(top)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # so that none sees another die and says so
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def engines(self) -> dict[str, int]:
        """Return the engine's process of each node that has one."""
        return {
            name: pid
            for name, node in self.nodes.items()
            for pid in descendants(node.all_processes["raylet"][0].process.pid)
            if b"engine_process" in _text(f"/proc/{pid}/cmdline")
        }

    def replace(self, rng: random.Random) -> bool:
        """Kill a node that has an engine, and add another; return whether there was one."""
        nodes = sorted(self.engines())
        if nodes:
            self.kill(rng.choice(nodes))
            self.add()
        return bool(nodes)

    def shutdown(self) -> None:
        self.cluster.shutdown()


@contextlib.contextmanager
def application(raylets: Raylets, arguments: Mapping[str, Any]) -> Iterator[int]:
    """Run the server on a cluster, and yield its port.

    `arguments` are those of `suffice.serve.ray:build`.
    """
    import ray
    from ray import serve

    from suffice.serve.ray import build

    ray.init(address=raylets.address, log_to_driver=False, logging_level="error")
    try:
        port = free_port()
        http = {"host": "127.0.0.1", "port": port}
        serve.start(proxy_location="HeadOnly", http_options=http)
        serve.run(build(arguments), name="suffice")
        yield port
        serve.shutdown()
    finally:
        ray.shutdown()


def descendants(top: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for each in Path(f"/proc/{top}/task").glob("*/children"):
        for pid in map(int, _text(each).split()):
            yield pid
            yield from descendants(pid)


def _text(path: str | Path) -> bytes:
    """Return what a file of /proc has; nothing once its process has ended."""
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""
