"""The flags of a server's engines: how many, of how many threads, and whose weights they have."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from suffice.cli.flags import flag
from suffice.cli.options import ModelFlags
from suffice.engine import option_values
from suffice.errors import InputError


@dataclass(frozen=True)
class InstanceFlags:
    """Engines that share a server's requests."""

    instances: int | None = flag(
        None,
        "--instances --data-parallel-size",
        "Engines, each with a share of the cores; default: one for each NUMA node.",
        panel="Server",
    )
    threads_per_instance: int | None = flag(
        None,
        "--threads-per-instance",
        "As --threads: threads of each engine; default: its share of the cores.",
        panel="Server",
    )

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
        from suffice.serve.processes.cores import default_instances

        return default_instances(threads) if self.instances is None else self.instances
