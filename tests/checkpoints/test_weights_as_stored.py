"""Models whose matrices run in the codes of their file: the same weights, nearly equal logits.

Also tests model_facts.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_files
import tiny
from caches import cache_for
from commands import Cli
from stored_blocks import ordinary
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.formats.gguf_types import CODES
from suffice.checkpoints.open import open_checkpoint
from suffice.cli.answer import weights
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import Quant
from suffice.quant.file import AsStored
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes
from suffice.quant.panels import PackedLinear
from suffice.quant.sites import SITE_OF

WIDTH, VOCABULARY, HEADS, KV_HEADS = 256, 40, 4, 2
TOKENS = list(range(3, 27))
SIZES = {
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": 2 * WIDTH,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
}


def write(path: Path, kind: str, *, tied: bool = False, **others: str) -> Path:
    """Write a llama of 2 layers whose matrices are random blocks of a type, or of `others`."""
    rows = {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2, "attn_output": WIDTH}
    rows |= {"ffn_gate": 2 * WIDTH, "ffn_up": 2 * WIDTH, "ffn_down": WIDTH}
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH)}
    tensors: dict[str, Any] = {"output_norm.weight": np.ones(WIDTH, np.float32)}
    if tied:
        del shapes["output"]
    for layer in range(2):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(WIDTH, np.float32)
        for name, count in rows.items():
            width = 2 * WIDTH if name == "ffn_down" else WIDTH
            shapes[f"blk.{layer}.{name}"] = (count, width)
    for name, shape in shapes.items():
        own = others.get(name.rpartition(".")[2], kind)
        random = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        stored: Any = random / 16
        if own == "F16":
            stored = (stored.astype(np.float16).view(np.uint8), own)
        elif own != "F32":
            stored = (ordinary(own, *shape), own)
        tensors[f"{name}.weight"] = stored
    return gguf_files.write(path, gguf_files.llama_keys(**SIZES), tensors)


def loaded(path: Path, quant: Quant) -> DecoderWeights:
    return DecoderWeights.from_checkpoint(open_checkpoint(path), quant)


def logits(decoder: DecoderWeights) -> np.ndarray:
    cache = cache_for(decoder, "float32", growth="upfront", limit=32)
    cache.reserve(32)
    return NativeModel(decoder, 64).step([StepRows(cache, TOKENS, outputs=None)])


def matrices(decoder: DecoderWeights) -> dict[str, PackedLinear]:
    return {n: each for n, each in decoder.weights.items() if isinstance(each, PackedLinear)}


@pytest.mark.parametrize("kind", CODES)
def test_weights_are_the_files_and_logits_those_of_floats(
    kind: str, each_isa: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.gguf", kind)
    floats = loaded(path, NoQuant("float32"))
    exact = logits(floats)
    errors = []
    few = ("qkv", "o", "gate_up")
    for act_bits in (16, 8):
        coded = loaded(path, AsStored(act_bits))
        assert coded.runs_as == "codes"
        for name, matrix in matrices(coded).items():
            of_inputs = act_bits if SITE_OF.get(name.rpartition(".")[2]) in few else 16
            assert isinstance(matrix, PackedCodes) and matrix.most == INPUT_LEVELS[of_inputs]
            dense = floats.matrix(name).unpack()
            assert np.array_equal(unpack(matrix), dense), name
            assert np.array_equal(matrix.unpack(), dense), name
        errors.append(np.abs(logits(coded) - exact).max() / exact.std())
    assert errors[0] < 1e-3 and errors[1] < 0.2


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_floats_are_what_they_were(kind: str, tmp_path: Path) -> None:
    """`none` stores what its own `pack` makes of the decoded weights, bit for bit."""
    path = write(tmp_path / "x.gguf", kind)
    dense = dict(open_checkpoint(path).tensors())
    for name, matrix in matrices(loaded(path, NoQuant())).items():
        packed = NoQuant().pack(dense[name].astype(np.float32))
        assert np.array_equal(matrix.data.view(np.uint16), packed.data.view(np.uint16)), name


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    coded = loaded(write(tmp_path / "x.gguf", "Q4_K", tied=True), AsStored())
    assert "head" not in coded.weights and isinstance(coded.matrix("embed"), PackedCodes)
    exact = logits(loaded(tmp_path / "x.gguf", NoQuant("float32")))
    assert np.abs(logits(coded) - exact).max() < 1e-3 * exact.std()


def test_matrices_in_float_stay_in_float(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", "Q4_K", attn_v="F32", output="Q6_K")
    decoder = loaded(path, AsStored(dtype="float32"))
    assert decoder.runs_as == "codes and float32"
    floats = {name for name, each in matrices(decoder).items() if each.dtype != "codes"}
    assert floats == {"layers.0.v", "layers.1.v"}
    exact = logits(loaded(path, NoQuant("float32")))
    assert np.abs(logits(decoder) - exact).max() < 1e-3 * exact.std()


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", "Q4_0")
    data = bytearray(path.read_bytes())
    data[-18:-16] = b"\x00\x7c"  # the last block's scale
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        loaded(path, AsStored())
    assert str(caught.value).endswith("has NaN or infinite entries; all must be finite")
    assert "\n" not in str(caught.value)


@pytest.fixture
def quantized(tmp_path: Path) -> tuple[Path, Path]:
    """A GGUF file in Q4_0, and a folder with its tokenizer."""
    folder = tiny.make(tmp_path / "tiny", "llama", tokenizer=True, rms_norm_eps=1e-5)
    return tiny.write_gguf(folder, tmp_path / "tiny.gguf", "Q4_0"), folder


CODES_SAID, FLOATS_SAID = "weights Q4_0, 4.5 bits a weight", "weights Q4_0, run as "


@pytest.mark.parametrize(
    ("options", "said", "kv"),
    [
        ({}, CODES_SAID, "bfloat16"),
        ({"dtype": "bfloat16"}, FLOATS_SAID + "bfloat16", "bfloat16"),
        ({"dtype": "float32"}, FLOATS_SAID + "float32", "float32"),
        ({"quantization": "none"}, FLOATS_SAID + "bfloat16", "bfloat16"),
        ({"quantization": "int8"}, FLOATS_SAID + "int8", "bfloat16"),
        ({"quantization": "file:act_bits=8"}, CODES_SAID, "bfloat16"),
        ({"quantization": "file", "dtype": "float32"}, CODES_SAID, "float32"),
        ({"speculative_config": "self:skip_layers=1"}, CODES_SAID, "bfloat16"),
        (
            {"speculative_config": {"method": "self", "quantization": "rtn:bits=2"}},
            CODES_SAID,
            "bfloat16",
        ),
    ],
    ids=str,
)
def test_the_default_is_what_the_file_stores(
    options: dict[str, Any], said: str, kv: str, quantized: tuple[Path, Path]
) -> None:
    model, tokenizer = quantized
    llm = LLM(model, tokenizer=tokenizer, threads=1, **options)
    assert (weights(llm), llm.config.kv_cache_dtype) == (said, kv)
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    [output] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 6


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({}, "it is stored"),
        ({"attn_v": "F32"}, "it is stored"),
        ({"attn_v": "F32", "attn_q": "F16"}, "it is stored, but F16 as float32"),
    ],
)
def test_says_what_a_model_runs_as(
    others: dict[str, str], said: str, cli: Cli, tmp_path: Path
) -> None:
    ran = cli("info", "-m", str(write(tmp_path / "x.gguf", "Q4_K", **others)))
    assert ran.code == 0
    assert f"runs as          {said}; --quant and --dtype change it\n" in ran.out


def test_drafts_are_checked_by_the_codes(quantized: tuple[Path, Path]) -> None:
    """A model in codes with drafts of its float original gives its own tokens."""
    model, tokenizer = quantized
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0)
    found = []
    for drafts in (None, {"method": "draft_model", "model": str(tokenizer)}):
        llm = LLM(model, tokenizer=tokenizer, threads=1, speculative_config=drafts)
        [output] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        found.append(output.outputs[0].token_ids)
    assert found[0] == found[1] and len(found[0]) == 8
