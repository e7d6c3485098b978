"""The engines of a server on this machine: their cores, their weights, and their replacement."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from suffice.checkpoints.files import fingerprint, locate, weight_files
from suffice.decoder.shelf import has_huge_pages
from suffice.errors import InputError, one_line
from suffice.pull import resolve
from suffice.serve.processes.cores import Share
from suffice.serve.processes.fleet import Fleet
from suffice.serve.processes.instances import Instance
from suffice.serve.processes.life import Weights, sharing
from suffice.serve.processes.pending import Observer
from suffice.serve.settings import Settings

Files = tuple[tuple[str, int, int, int], ...]  # name, bytes, time of change, number
LOG = logging.getLogger("suffice.serve")
NO_HUGE_PAGES = (
    "weights are shared in small pages, which are slower to read: allow huge ones by "
    "`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`, or give --no-share-weights"
)


class LocalFleet(Fleet):
    """Instances with cores of their own; those of a NUMA node may share their weights."""

    members: Sequence[Instance]

    def __init__(self, shares: Sequence[Share], settings: Settings, observe: Observer) -> None:
        """Prepare the instances, one for each share of the cores.

        Raises:
            InputError: Weights cannot be shared.
        """
        self._shares = shares
        super().__init__(settings, observe)
        self._model = settings.options.get("model")
        self._path: Path | None = None  # of the model
        self._files: Files = ()
        self._share_weights = sharing(settings.share_weights, settings.instances)
        self._known: set[Weights] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._again = False

    def _hired(self) -> list[Instance]:
        return [Instance(self._settings, self._observed, share) for share in self._shares]

    async def start(self) -> None:
        """Start the engines and wait until all are ready.

        Raises:
            Problem: One died before it was ready.
        """
        if self._share_weights:
            if not has_huge_pages():
                LOG.warning(NO_HUGE_PAGES)
            by_node = {share.node: Weights() for share in self._shares}
            for member in self.members:
                member.weights = by_node[member.node]
        self._known = self._weights()
        await asyncio.gather(self._find(), super().start())

    async def close(self) -> None:
        """Stop the engines."""
        if self._renewing is not None:
            self._renewing.cancel()
        await super().close()
        for each in self._known | self._weights():
            each.close()
        self._known = set()
        for member in self.members:
            member.weights = None

    async def _find(self) -> None:
        """Note where the model's files are, and what they look like."""
        if self._known and self._model is not None:
            with contextlib.suppress(InputError):  # the engines say what is wrong
                self._path = await asyncio.to_thread(lambda: locate(resolve(str(self._model))))
                self._files = files_of(self._path)

    def renew(self) -> None:
        """Replace the engines by new ones, one after the other; requests go on in these.

        If that is under way already, it is done once more after that.
        """
        if self._renewing is not None and not self._renewing.done():
            self._again = True
            LOG.warning("the engines are being replaced: that is done once more after this")
            return
        self._renewing = asyncio.create_task(self._renew_all())

    async def _renew_all(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            fresh = await self._reloaded()
            for at, member in enumerate(self.members):
                before = member.weights
                member.weights = fresh.get(member.node, before)
                if not await member.renew():
                    member.weights = before
                    LOG.error("engine %d was not replaced: the old ones go on from there", at)
                    break
            else:
                LOG.warning("engines replaced by new ones: %d", len(self.members))
            used = self._weights()
            for each in (self._known | set(fresh.values())) - used:
                each.close()
            self._known = used

    async def _reloaded(self) -> dict[int, Weights]:
        """Return, for each node, where engines load the model's files again if these have changed.

        Files of another model are not loaded: texts that have begun go on with what began them.
        """
        if self._path is None or (files := files_of(self._path)) == self._files:
            return {}
        try:
            stamp = await asyncio.to_thread(fingerprint, self._path)
        except InputError as error:
            stamp = one_line(error)
        if self.facts is None or stamp != self.facts.stamp:
            LOG.error("the model's files are not the model that is served any more: it is kept")
            return {}
        self._files = files
        return {member.node: Weights() for member in self.members}

    def _weights(self) -> set[Weights]:
        return {member.weights for member in self.members if member.weights is not None}


def files_of(path: Path) -> Files:
    """Return what tells that a model's files were replaced or written; nothing if they are gone."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else weight_files(path)
        found = [(str(file), file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, at.st_size, at.st_mtime_ns, at.st_ino) for name, at in found)
