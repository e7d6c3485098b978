"""Parses settings of the engine as written in tables: `quest:ratio=0.2 + art:change=1e-2`.

`exact @ int8` keeps keys and values in int8; without it they have the type of the table.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.engine.config import Config
from suffice.engine.runner import Runner
from suffice.errors import InputError, unknown
from suffice.policy import POLICIES

SEAMS = {"attention": ATTENTIONS, "softmax": SOFTMAXES, "policy": POLICIES}


def stored_in(setting: str) -> tuple[str, str | None]:
    """Return a setting's techniques, and the type of its keys and values if it names one."""
    techniques, at, stored = setting.partition(" @ ")
    return techniques, stored if at else None


def parts(setting: str) -> dict[str, str]:
    """Return the techniques of a setting by seam.

    Raises:
        InputError: An unknown technique, or two of one seam.
    """
    found: dict[str, str] = {}
    for part in stored_in(setting)[0].split(" + "):
        name = part.partition(":")[0]
        seam = next((seam for seam, table in SEAMS.items() if name in table.entries), None)
        if seam is None:
            raise unknown("technique", name, [n for t in SEAMS.values() for n in t.entries])
        if seam in found:
            raise InputError(f"{setting}: {found[seam]} and {part} are both of the seam {seam}")
        found[seam] = part
    return found


def accepted(
    model: str | os.PathLike[str], settings: list[str], refused: dict[str, str], **options: Any
) -> dict[str, dict[str, Any]]:
    """Return the techniques of accepted settings, and record why the others are refused.

    `options` are common to all settings, but a calibration, which only some need.

    Raises:
        InputError: An unknown technique, or two of one seam.
    """
    found = {}
    for setting in settings:
        techniques = parts(setting)
        try:
            needed = options if calibrated(techniques) else {**options, "calibration": None}
            stored = stored_in(setting)[1]
            own = {"kv_cache_dtype": stored} if stored else {}
            config = Config.create(model, **needed, **techniques, **own)
        except InputError as error:
            refused[setting] = str(error)
        else:
            names = (*SEAMS, "calibration", *own)
            found[setting] = {name: getattr(config, name) for name in names}
    return found


def required(
    model: str | os.PathLike[str], settings: list[str], **options: Any
) -> dict[str, dict[str, Any]]:
    """Return the techniques of settings, as `accepted` does.

    Raises:
        InputError: A setting that cannot be used, or a calibration that none needs.
    """
    refused: dict[str, str] = {}
    found = accepted(model, settings, refused, **options)
    for setting, reason in refused.items():
        raise InputError(f"{setting}: {reason}")
    given = options.get("calibration")
    if given is not None and not any(each["calibration"] for each in found.values()):
        raise InputError(f"--calibration={given}: no setting needs one: leave it out")
    return found


def with_techniques(config: Config, own: dict[str, Any], stamp: str) -> Config:
    """Return a config with the techniques of a setting, on weights with this fingerprint.

    Raises:
        InputError: A calibration of another model.
    """
    found = dataclasses.replace(config, **own)
    if found.calibration is not None:
        found.calibration.check(found.model, stamp, found.merge_adapter)
    return found


def runners(base: Runner, techniques: dict[str, dict[str, Any]]) -> dict[str, Runner]:
    """Return a runner of the same weights for each setting; `techniques` are those of `accepted`.

    Raises:
        InputError: A calibration of another model.
    """
    found = {}
    for setting, own in techniques.items():
        config = with_techniques(base.config, own, base.stamp)
        found[setting] = Runner(config, base.decoder, base.sample, stamp=base.stamp)
    return found


def calibrated(techniques: dict[str, str]) -> bool:
    """Return whether techniques, by seam, need a calibration.

    Raises:
        InputError: A bad option.
    """
    own = [SEAMS[seam].build(techniques.get(seam, "exact")) for seam in ("attention", "softmax")]
    return bool(own[0].calibrated or own[1].coded)
