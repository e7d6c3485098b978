"""`suffice info`: version, machine, techniques, models."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suffice import __version__, native
from suffice.cache import JOINT_DTYPES, KV_DTYPES, fits_keys, machine, token_bytes
from suffice.cli.output import busy, markdown
from suffice.cli.techniques import SEAMS, Seam
from suffice.errors import OptionError
from suffice.eval.record import versions
from suffice.pull import MODELS, model_path, resolve
from suffice.registry import Table

if TYPE_CHECKING:
    from suffice.checkpoints.checkpoint import Checkpoint
    from suffice.checkpoints.formats.quantized_file import Quantized
    from suffice.checkpoints.storage import StoredMatrix
    from suffice.decoder.config import DecoderConfig
    from suffice.decoder.latent import Latent
    from suffice.decoder.rotation import Rope

ISA_NAMES = {
    "v4_bf16": "AVX-512 with BF16",
    "v4": "AVX-512",
    "v3_vnni": "AVX2 with VNNI",
    "v3": "AVX2",
    "neon_i8mm": "NEON with I8MM and BF16",
    "neon_dot": "NEON with dot products",
    "neon": "NEON",
    "base": "plain loops",
}
_BYTES = (("float32", 4), ("bfloat16", 2), ("int8", 1))
_KV_TYPES = ("float32", "bfloat16", "int8", "kmeans4")
_LENGTHS = (8192, 32_768, 131_072)  # of texts
_TILED = (
    "--attention tiers:eps=0,skip=0,prompt=0.03 reads fewer keys for them (1.56 times as fast at "
    "8190 tokens of SmolLM2-135M); texts change, and share no prefixes"
)


def show() -> None:
    """Print the version, the machine, the techniques and the models."""
    for name, value in [*_versions(), *_machine(), *_speeds()]:
        print(f"{name:16} {value}")
    print()
    print(markdown(["seam", "technique", "computed by"], techniques()))
    print(
        "\nPyTorch: for models of transformers and `suffice quantize`; -: decides, computes nothing"
    )
    print(f"keys and values in {', '.join(KV_DTYPES)}, in native code everywhere\n")
    for model in MODELS.values():
        path = model_path(model)
        here = str(path) if path.is_file() else f"not here: suffice pull {model.name}"
        print(f"{model.name:16} {model.summary}; {here}")


def techniques(seams: Sequence[Seam] = SEAMS) -> list[list[str]]:
    """Return a row per technique: its seam, its name, and the code that computes it, if any."""
    return [
        [seam.name, name, _computed_by(seam.table, name)]
        for seam in seams
        for name in seam.table.names()
    ]


def _computed_by(table: Table, name: str) -> str:
    if table.native is None:
        return "-"
    return "native code, PyTorch" if name in table.native else "PyTorch"


def _versions() -> list[tuple[str, str]]:
    packages = [f"{name} {version}" for name, version in versions().items() if name != "suffice"]
    return [
        ("suffice", __version__),
        ("Python", ", ".join([platform.python_version(), *packages])),
    ]


def _machine() -> list[tuple[str, str]]:
    chosen = native.isa()
    forced = "forced by SUFFICE_ISA" if os.environ.get("SUFFICE_ISA") else "the best to be had here"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [
        ("CPU", machine.cpu_name()),
        ("cores", f"{native.cores()} may be used of {os.cpu_count()}"),
        ("threads", f"{native.threads()} (-t changes it)"),
        ("instruction set", f"{chosen} ({ISA_NAMES.get(chosen, chosen)}), {forced}"),
        ("sets built", _built()),
        ("memory", f"{memory / 2**30:.1f} GiB"),
    ]


def _built() -> str:
    """Return the instruction sets of this build, and those it lacks although this CPU runs them."""
    missing = native.isas_not_built()
    lacking = f"; this CPU also runs {', '.join(missing)}, not built" if missing else ""
    return ", ".join(native.isas_built()) + lacking


def _speeds() -> list[tuple[str, str]]:
    measured = machine.load()
    if measured is None:
        return [("memory speed", "not measured, defaults stand in: suffice info --measure")]
    return [("memory speed", f"{_rates(measured)}; measured {measured.measured}")]


def _rates(measured: machine.Machine) -> str:
    return (
        f"copies {measured.copy_bytes_per_second / 1e9:.1f} GB/s, "
        f"{measured.products_per_second / 1e9:.1f} billion multiply-adds/s, "
        f"reads {measured.read_bytes_per_second / 1e9:.1f} GB/s "
        f"({measured.read_bytes_per_second_one / 1e9:.1f} of one thread)"
    )


def measure() -> None:
    """Measure the machine, save the result, and print how often a cache should grow."""
    with busy("measuring, a few seconds"):
        measured = machine.measure(threads=native.threads())
    machine.save(measured)
    print(f"{measured.cpu}, {measured.threads} threads: {_rates(measured)}", file=sys.stderr)
    print(f"kept in {machine.path()}\n", file=sys.stderr)
    rows = [
        [line.limit, f"{line.exact:.1f}", line.allocations, line.rows, line.kernel_rows]
        for line in machine.allocation_table(measured)
    ]
    print(markdown(["context N", "best T", "T used", "rows r", "rows r of the engine"], rows))


def _heads(config: DecoderConfig) -> str:
    """Return the query heads, and the key/value heads of each kind of layer that stores any."""
    kinds = Counter((rows.heads, rows.size) for rows in config.rows if rows.shares is None)
    shared = sum(rows.shares is not None for rows in config.rows)
    several = len(kinds) > 1
    parts = [
        f"{heads} key/value, of {size}" + (f", in {count} layers" if several else "")
        for (heads, size), count in kinds.most_common()
    ]
    also = f"; {shared} layers read another's" if shared else ""
    return f"{config.heads} query, " + "; ".join(parts) + also


def show_model(name: str, tokens: int | None = None, memory: str | None = None) -> None:
    """Print a model's configuration and sizes.

    `tokens` is the length of a text whose memory is said, and whether it fits into `memory`; None:
    of some lengths, and the machine's memory.

    Raises:
        InputError: The model does not exist or cannot be used, or an argument is bad.
    """
    from suffice.engine.context_memory import machine_bytes
    from suffice.engine.option_values import size

    room = size("memory", memory) or machine_bytes()
    if tokens is not None and tokens < 1:
        raise OptionError("ctx_size", tokens, "must be at least 1 token")
    path = resolve(name)
    with busy(f"opening {name}"):
        from suffice.checkpoints.formats.quantized_file import Quantized
        from suffice.checkpoints.open import open_model
        from suffice.decoder.names import weight_count

        opened = open_model(path)
    config = opened.config
    parameters = weight_count(config)

    def bytes_of(dtype: str) -> int:
        return token_bytes(dtype, dtype, config.rows, joint=config.joint > 0)

    lines = {
        "file": opened.path,
        "parameters": f"{parameters / 1e6:.1f} M",
        "stored as": f"{opened.stored_as}: {_kinds(opened.matrices)}",
        "runs as": _runs_as(opened),
        "layers": _layers(config),
        "heads": _heads(config),
        "width": f"{config.width}, MLP {config.mlp_width}, vocabulary {config.vocab}",
        **({"experts": _experts(config)} if config.experts else {}),
        "mechanisms": _mechanisms(config),
        "context": _context(config),
        "weights": ", ".join(f"{parameters * b / 2**20:.0f} MiB {n}" for n, b in _BYTES),
        "KV per token": ", ".join(
            f"{bytes_of(dtype) / 2**10:.1f} KiB {dtype}"
            for dtype in _KV_TYPES
            if (dtype in JOINT_DTYPES or not config.joint)
            and (config.alike or not fits_keys(dtype))
        ),
        **({"states": _states(config)} if config.states else {}),
        **_lengths(config, _file_bytes(opened.path) or 2 * parameters, room, tokens),
    }
    if isinstance(opened, Quantized):
        lines |= _quantized(opened)
    for key, value in lines.items():
        print(f"{key:16} {value}")


def _layers(config: DecoderConfig) -> str:
    """Return how many layers there are, and what each kind of them sees or keeps."""
    windows = Counter("all" if layer.window is None else layer.window for layer in config.cached)
    seen = ", ".join(f"{count} see {window}" for window, count in windows.most_common())
    bare = sum(layer.mixer == "none" for layer in config.layers)
    found = [
        f"{seen} tokens",
        *([f"{len(config.states)} keep a state"] if config.states else []),
        *([f"{bare} have an MLP alone"] if bare else []),
    ]
    return f"{len(config.layers)} ({', '.join(found)})"


def _file_bytes(path: Path) -> int:
    """Return the bytes of a file; 0 for a folder."""
    return path.stat().st_size if path.is_file() else 0


def _lengths(config: DecoderConfig, weights: int, memory: int, asked: int | None) -> dict[str, str]:
    """Return the memory of keys and values of long texts, and the type in which they fit."""
    from suffice.engine.context_memory import fitting, in_words, row_bytes, types_for

    if asked is not None and asked > config.most_positions:
        must = f"must be at most {config.most_positions}, the model's context"
        raise OptionError("ctx_size", asked, must)
    found = {}
    for tokens in _LENGTHS if asked is None else (asked,):
        if tokens > config.most_positions:
            break
        sizes = ", ".join(
            f"{in_words(tokens * row_bytes(config, each))} {each}" for each in types_for(config)
        )
        room = f"{in_words(memory)}, weights included"
        if chosen := fitting(tokens, config, weights, memory):
            fits = f"--kv-cache-dtype {chosen} fits into {room}"
        else:
            *_, least = types_for(config)
            most = max(memory - weights, 0) // row_bytes(config, least)
            fits = f"none fits into {room}: at most {most} tokens as {least} do"
        found[f"{tokens} tokens"] = f"{sizes}: {fits}"
        if tokens >= _LENGTHS[0]:
            found["long prompts"] = _TILED
    return found


def _states(config: DecoderConfig) -> str:
    """Return the bytes of the states of a request, which do not grow."""
    from suffice.decoder.native_states import state_shapes

    size = sum(shape.bytes for shape in state_shapes(config.states))
    return f"{size / 2**10:.1f} KiB of each request, whatever its length"


def _kinds(matrices: list[StoredMatrix]) -> str:
    """Return how each kind of matrix is stored, and the bits per weight of all together."""
    from suffice.checkpoints.storage import by_kind

    bits = 8 * sum(m.bytes for m in matrices) / sum(m.entries for m in matrices)
    groups = by_kind(matrices)
    if len(groups) == 1:
        return f"{bits:.2f} bits per weight"
    said = [f"{', '.join(kinds)} {types} ({each:.2f})" for kinds, types, each in groups]
    return f"{bits:.2f} bits per weight; {'; '.join(said)}"


def _runs_as(model: Checkpoint | Quantized) -> str:
    """Return the type of weights in memory, unless a flag asks for another."""
    from suffice.checkpoints.formats.quantized_file import Quantized
    from suffice.checkpoints.stored_file import FLOATS

    if isinstance(model, Quantized):
        return "it is stored"
    found = "bfloat16" if model.dtype == "bfloat16" else "float32"
    others = [matrix.type for matrix in model.matrices if not matrix.coded]
    if len(others) < len(model.matrices):
        changed = sorted(each for each in set(others) if str(FLOATS.get(each, each)) != found)
        found = f"it is stored, but {', '.join(changed)} as {found}" if changed else "it is stored"
    return f"{found}; --quant and --dtype change it"


def _quantized(model: Quantized) -> dict[str, object]:
    """Return the facts stored in a quantized model's file, and the loss of each matrix."""
    facts = model.facts
    own = facts["model"]
    lines: dict[str, object] = {
        "parameters": f"{_entries(model) / 1e6:.1f} M in matrices",
        "weights": f"{model.path.stat().st_size / 2**20:.0f} MiB, "
        f"{model.bits_per_weight:.2f} bits per weight of the matrices",
        "quantized": f"{facts['method']} from {own['name']} ({own['hash']})",
        "calibrated on": "{name}, {windows} windows of {window} tokens".format(**facts["text"]),
        "loss": "of the mean square of a matrix's outputs, by layer",
    }
    for name, matrix in facts["matrices"].items():
        if "loss" in matrix:
            layer, _, part = name.rpartition(".")
            lines[layer] = f"{lines.get(layer, '')}  {part} {100 * matrix['loss']:.2f} %"
    return lines


def _entries(model: Quantized) -> int:
    return sum(matrix["rows"] * matrix["columns"] for matrix in model.facts["matrices"].values())


def _experts(config: DecoderConfig) -> str:
    own = config.experts
    assert own is not None
    dense = sum(layer.dense for layer in config.layers)
    found = [
        f"{own.chosen} of {own.count}, of width {own.inner}, by {', '.join(own.steps)}",
        *([f"in {own.kept_groups} of {own.groups} groups"] if own.groups > 1 else []),
        *([f"times {own.scale:g}"] if own.scale != 1 else []),
        *([f"to {own.narrow} entries of a row"] if own.narrow else []),
        *([f"one of width {own.shared} for all tokens"] if own.shared else []),
        *([f"{dense} layers without"] if dense else []),
    ]
    return "; ".join(found)


def _mechanisms(config: DecoderConfig) -> str:
    ropes = [f"rope {rope.kind} (theta {rope.theta:g}{_part(rope)})" for rope in config.ropes]
    bare = sum(layer.rope is None for layer in config.cached) if config.ropes else 0
    found = [
        f"{config.norm} norm, {config.placement}",
        *(["parallel blocks"] if config.parallel else []),
        f"{'gated ' if config.gated else ''}{config.activation}",
        *ropes,
        *([_latent(config.latent)] if config.latent else []),
        *([f"{bare} layers without rope"] if bare else []),
        *(["a norm of embeddings"] if config.embed_norm else []),
        *(["learned positions"] if config.position_rows else []),
        *([_qk_norms(config)] if config.qk_norm else []),
        *(["values normalized"] if config.value_norm else []),
        *(["keys are values"] if any(each.keys_as_values for each in config.cached) else []),
        *([f"embeddings of layers, of {size}"] if (size := config.layer_embed_size) else []),
        *([f"residual scale {config.residual_scale:g}"] if config.residual_scale != 1 else []),
        *(["attention and states side by side"] if _mixed(config) else []),
        *([f"logit scale {config.logit_scale:g}"] if config.logit_scale != 1 else []),
        *(["tied embeddings"] if config.tied else []),
        *([f"biases on {', '.join(sorted(config.biases))}"] if config.biases else []),
    ]
    return "; ".join(found)


def _mixed(config: DecoderConfig) -> bool:
    """Return whether a layer has attention and a state."""
    return any(layer.attends and layer.keeps_state for layer in config.layers)


def _latent(latent: Latent) -> str:
    low = f", queries by {latent.low} entries" if latent.low else ""
    return f"latent attention, to rows of {latent.rank} + {latent.rotated} entries{low}"


def _context(config: DecoderConfig) -> str:
    """Return the context length, and up to which one the rotation is that of short texts."""
    most, short = config.max_positions, config.longest_text
    return f"{most} tokens" + (f"; with -c {short} rotated as short texts" if short < most else "")


def _part(rope: Rope) -> str:
    part = f", {100 * rope.partial:g} % of a head" if rope.partial != 1 else ""
    return f"{part}{', backward' if rope.backward else ''}"


def _qk_norms(config: DecoderConfig) -> str:
    how = " over all heads" if config.whole_qk_norm else ""
    return f"query and key norms{how}{' after the rotation' if config.late_qk_norm else ''}"
