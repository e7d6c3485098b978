"""The device on which a benchmark runs models in PyTorch: the host's cores, or a GPU in float32."""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks.harness.tables import Cells
from suffice import native
from suffice.errors import InputError
from suffice.eval.perplexity import Differences, PerplexityTally, Scores

CHOICES = ("cpu", "cuda")


def add_option(parser: argparse.ArgumentParser, default: str | None = "cpu") -> None:
    """Add --device; without a default, the engine computes unless it is given."""
    about = "where PyTorch computes: cpu or cuda"
    about = f"{about}; default: {default or 'the engine computes, without PyTorch'}"
    parser.add_argument("--device", default=default, help=about)


def chosen(name: str) -> torch.device:
    """Return the device of --device, without TensorFloat-32 and with the products of attention as
    matmuls in float32.

    Raises:
        InputError: PyTorch does not have it here.
    """
    here = CHOICES if torch.cuda.is_available() else CHOICES[:1]
    if name not in here:
        raise InputError(
            f"--device={name}: PyTorch has no such device here; allowed: {', '.join(here)}"
        )
    if name == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
        return torch.device(name, torch.cuda.current_device())
    return torch.device(name)


def use_threads(count: int | None) -> None:
    """Set the number of the host's threads, of PyTorch and of the engine's kernels."""
    if count:
        native.set_threads(count)
        torch.set_num_threads(count)


def compare(
    tally: PerplexityTally,
    window: int,
    targets: list[int],
    logits: torch.Tensor,
    reference: torch.Tensor,
) -> None:
    """Add predictions of tokens of a window, from logits [R, V], compared with the reference's."""
    windows = [window] * len(targets)
    if logits.device.type == "cpu":
        tally.add(*(Scores(windows, targets, each.numpy()) for each in (logits, reference)))
    else:
        tally.take(windows, *compared(targets, logits, reference))


def compared(
    targets: list[int], logits: torch.Tensor, reference: torch.Tensor
) -> tuple[np.ndarray, Differences]:
    """Return what a tally takes of predictions, computed on the device of the logits."""
    logs, expected = logits.log_softmax(-1), reference.log_softmax(-1)
    at = torch.tensor(targets).to(logits.device)[:, None]
    found = (
        -logs.gather(1, at)[:, 0],
        -expected.gather(1, at)[:, 0],
        (expected.exp() * (expected - logs)).sum(-1),
        logs.argmax(-1) == expected.argmax(-1),
    )
    nll, *differences = (each.cpu().numpy() for each in found)
    return nll, Differences(*differences)


def of_cell(device: torch.device) -> dict[str, str]:
    """Return the part of a cell that names the GPU it was computed on; nothing of the host."""
    return {} if device.type == "cpu" else {"gpu": torch.cuda.get_device_name(device)}


def sentence(cells: Cells) -> str:
    """Return what a table says of the devices of its cells."""
    every = [cell for columns in cells.values() for cell in columns.values()]
    names = sorted({cell["gpu"] for cell in every if "gpu" in cell})
    if not names:
        return ""
    there = sum("gpu" in cell for cell in every)
    which = "Computed" if there == len(every) else f"{there} of {len(every)} rows were computed"
    return f" {which} on a GPU ({', '.join(names)}), in float32."
