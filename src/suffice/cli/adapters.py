"""The flag of LoRA adapters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.cli.flags import flag
from suffice.errors import InputError

if TYPE_CHECKING:
    from suffice.cli.options import ModelFlags


@dataclass(frozen=True)
class AdapterFlags:
    """LoRA adapters."""

    adapter: list[str] | None = flag(
        None,
        "--adapter",
        "A LoRA adapter, a folder of PEFT. A server takes several, and requests name one "
        "as their model.",
        panel="Model",
        metavar="NAME=FOLDER",
    )

    def on(self, model: ModelFlags) -> ModelFlags:
        """Return the model's flags with the adapters."""
        adapters = tuple(self.adapter or ())
        options = dataclasses.replace(model.options, adapters=adapters)
        return dataclasses.replace(model, options=options)

    def usual(self, model: ModelFlags, command: str) -> ModelFlags:
        """Return the model's flags with the one adapter that a command measures, if given.

        Raises:
            InputError: There are several, or its form is wrong.
        """
        name = self.only(command)
        if name is None:
            return model
        options = dataclasses.replace(self.on(model).options, adapter=name)
        return dataclasses.replace(model, options=options)

    def only(self, command: str) -> str | None:
        """Return the name of the adapter that a command uses; None without one.

        Raises:
            InputError: There are several, or its form is wrong.
        """
        from suffice.engine.option_values import named_folders

        found = named_folders("adapter", self.adapter or ())
        if len(found) > 1:
            raise InputError(f"{command} uses one --adapter, {len(found)} given: `serve` has many")
        return found[0][0] if found else None
