"""The flags of a server's engines: how many, of how many threads, and whose weights they have."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from suffice.cli.flags import NUMBER, WHOLE, flag
from suffice.cli.options import ModelFlags
from suffice.engine import option_values
from suffice.errors import InputError


@dataclass(frozen=True)
class InstanceFlags:
    """Engines that share a server's requests."""

    instances: Annotated[
        int | None,
        flag(
            "--instances",
            "--data-parallel-size",
            help="Engines, each with a share of the cores; default: one for each NUMA node.",
            panel="Server",
            **WHOLE,
        ),
    ] = None
    threads_per_instance: Annotated[
        int | None,
        flag(
            "--threads-per-instance",
            help="As --threads: threads of each engine; default: its share of the cores.",
            panel="Server",
            **WHOLE,
        ),
    ] = None
    share_weights: Annotated[
        bool | None,
        flag(
            "--share-weights/--no-share-weights",
            help="Keep the weights of a NUMA node's engines once, in memory that they share and a "
            "restarted engine finds; default: yes, but for one engine without huge pages for it.",
            panel="Server",
        ),
    ] = None
    hang_timeout: Annotated[
        float,
        flag(
            "--hang-timeout",
            help="Seconds after which an engine that says nothing, has work and makes no step, or "
            "loads and does nothing, is replaced; its requests go on in another.",
            panel="Server",
            **NUMBER,
        ),
    ] = 120.0

    def with_threads(self, model: ModelFlags) -> ModelFlags:
        """Return the model's flags with the threads of each engine.

        Raises:
            InputError: Two contradictory numbers.
        """
        asked, known = self.threads_per_instance, model.options.threads
        if asked is None:
            return model
        if known not in (None, asked):
            raise InputError(
                f"--threads-per-instance {asked} and --threads {known} contradict each other: give "
                "one"
            )
        option_values.threads("threads_per_instance", asked)
        return dataclasses.replace(model, options=dataclasses.replace(model.options, threads=asked))

    def engines(self, threads: int | None) -> int:
        """Return the number of engines."""
        from suffice.serve.cores import default_instances

        return default_instances(threads) if self.instances is None else self.instances
