"""The plug-in of vLLM, with vLLM's own classes and engine on the CPU, and kernels interpreted.

Its CPU build always takes the attention that is named CPU_ATTN: so the tests name the plug-in's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM's CPU build, in an environment of its own")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_layout import KVCacheLayout

import tiny
from suffice.errors import InputError
from suffice.integrations.vllm import Prompt, Step, StepBuilder, SufficeAttention, SufficeBackend

HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 32, 16
LENGTHS, NEW = [40, 17, 33, 25], [1, 1, 33, 9]  # two decode, a whole prompt, the end of another
LOSSY = "art:change=9,angle=2,patience=1,block=16"


@pytest.fixture(autouse=True)
def of_vllm() -> Iterator[Any]:
    config = VllmConfig(additional_config={})
    with set_current_vllm_config(config):
        yield config


def attention(window: int | None = None, **options: Any) -> SufficeAttention:
    return SufficeAttention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, sliding_window=window, **options)


def step(lengths: list[int], new: list[int], table: torch.Tensor, **options: Any) -> Step:
    """Return the builder's step of vLLM's own description of a batch."""
    starts = torch.tensor([0, *new]).cumsum(0).int()
    sizes = torch.tensor(lengths, dtype=torch.int32)
    batch = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=sizes,
        num_reqs=len(new),
        num_actual_tokens=sum(new),
        max_query_len=max(new),
        max_seq_len=max(lengths),
        block_table_tensor=table,
        slot_mapping=torch.zeros(sum(new), dtype=torch.int64),
        **options,
    )
    return StepBuilder.build(object.__new__(StepBuilder), 0, batch)


def test_a_batch_is_decode_steps_and_prompts() -> None:
    found = step(LENGTHS, NEW, torch.zeros(4, 3, dtype=torch.int32))
    assert found.owner.tolist() == [0, 1] and found.length.tolist() == [40, 17]
    assert found.prompts == [Prompt(2, 2, 35, 33), Prompt(3, 35, 44, 25)] and found.most == 40
    only = step([40, 17], [1, 1], torch.zeros(2, 3, dtype=torch.int32))
    assert only.owner.tolist() == [0, 1] and only.prompts == []
    with pytest.raises(InputError, match="attention that is not causal: suffice's backend has"):
        step([40], [1], torch.zeros(1, 3, dtype=torch.int32), causal=False)


def cache(layout: KVCacheLayout, pages: int, page: int) -> torch.Tensor:
    """Return a layer of vLLM's cache, [pages, G, rows, 2 D], as a layout has it in memory."""
    shape = 2, pages, KV_HEADS, page, 2 * SIZE
    order = layout.stride_order
    held = torch.full([shape[at] for at in order], torch.nan)
    return held.permute(*(order.index(at) for at in range(5)))[1]


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return exact attention [T, H, D] of the last tokens q to rows k and v [S, G, D]."""
    at = torch.arange(len(k) - len(q), len(k))[:, None]
    row = torch.arange(len(k))
    hidden = (row > at) | (row <= at - (window or len(k)))
    k, v = (each.double().repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), k) * SIZE**-0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v).float()


@pytest.mark.parametrize("layout", KVCacheLayout)
@pytest.mark.parametrize("window", [None, 20])
def test_a_step_is_attention_to_the_rows_of_vllm_s_cache(
    layout: KVCacheLayout, window: int | None
) -> None:
    made = torch.Generator().manual_seed(0)
    table = 1 + torch.randperm(12, generator=made).view(4, 3).int()
    layer, held = attention(window), cache(layout, 13, PAGE)
    rows = [torch.randn(2, n, KV_HEADS, SIZE, generator=made) for n in LENGTHS]
    for own, (k, v) in zip(table, rows, strict=True):
        at = torch.arange(len(k))
        slots = own[at // PAGE].long() * PAGE + at % PAGE
        layer.do_kv_cache_update(None, k, v, held, slots)
    empty = torch.full((3,), -1), torch.ones(3, KV_HEADS, SIZE)
    layer.do_kv_cache_update(None, empty[1], empty[1], held, empty[0])
    assert held[1:].isfinite().any() and held[0].isfinite().sum() == KV_HEADS * 2 * SIZE
    q = torch.randn(sum(NEW), HEADS, SIZE, generator=made)
    output = torch.full_like(q, torch.nan)
    layer.forward(None, q, q, q, held, step(LENGTHS, NEW, table), output)
    begin = 0
    for new, (k, v) in zip(NEW, rows, strict=True):
        own = slice(begin, begin := begin + new)
        torch.testing.assert_close(
            output[own], expected(q[own], k, v, window), atol=2e-6, rtol=1e-5
        )


def test_a_technique_is_that_of_the_additional_configuration(of_vllm: VllmConfig) -> None:
    assert attention().technique == "exact"
    of_vllm.additional_config = {"suffice_attention": LOSSY}
    assert attention().technique == LOSSY
    of_vllm.additional_config = {"suffice_attention": "certified"}
    with pytest.raises(InputError, match="attention 'certified' of decode_attention: must be art"):
        attention()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alibi_slopes": [0.5]}, r"alibi_slopes=\[0.5\]: suffice's backend has none"),
        ({"logits_soft_cap": 30.0}, "logits_soft_cap=30.0: suffice's backend has none"),
        ({"attn_type": "encoder"}, "attn_type=encoder: suffice's backend has none"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8: suffice's backend has none"),
    ],
)
def test_what_a_layer_may_not_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention(**options)


def test_what_vllm_asks() -> None:
    sizes = [size for size in range(8, 300, 8) if SufficeBackend.supports_head_size(size)]
    assert sizes == list(range(16, 257, 16))
    assert SufficeBackend.supports_sliding_window() and not SufficeBackend.supports_sink()
    assert SufficeBackend.supports_dtype(torch.float32)
    assert not SufficeBackend.supports_kv_cache_dtype("fp8")


RUN = """
import json, sys
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
model, technique = sys.argv[1:]
if technique:
    register_backend(AttentionBackendEnum.CPU_ATTN, "suffice.integrations.vllm.SufficeBackend")
import vllm
from suffice.integrations import vllm as ours
called, decode = [], ours.decode_attention
def counted(*given):
    found = decode(*given)
    called.append(found[1][0].sum().item())
    return found
ours.decode_attention = counted
llm = vllm.LLM(
    model=model, dtype="float32", max_model_len=128, max_num_seqs=4, block_size=32,
    max_num_batched_tokens=128, enforce_eager=True, enable_prefix_caching=False, seed=0,
    additional_config={"suffice_attention": technique} if technique else {},
)
params = vllm.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
prompts = [{"prompt_token_ids": list(range(*ends))} for ends in ((3, 43), (50, 57), (50, 150))]
outputs = llm.generate(prompts, params, use_tqdm=False)
print(json.dumps({
    "tokens": [list(each.outputs[0].token_ids) for each in outputs],
    "called": len(called), "read": sum(called), "custom": AttentionBackendEnum.CUSTOM.get_path(),
}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"head_dim": 64, "hidden_size": 128}  # vLLM's own attention has no heads of 16
    return tiny.make(tmp_path_factory.mktemp("llama"), "llama", tokenizer=True, **shape)


def ran(model: Path, technique: str) -> dict[str, Any]:
    """Let vLLM's engine answer three prompts, of which one is cut; "": by its own attention."""
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(model), technique]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_vllm_generates_the_tokens_of_its_own_attention(model: Path) -> None:
    own, exact, lossy = (ran(model, each) for each in ("", "exact", LOSSY))
    assert exact["tokens"] == own["tokens"] and own["called"] == 0
    assert exact["called"] > 0 and lossy["read"] < exact["read"]
    assert own["custom"] == "suffice.integrations.vllm.SufficeBackend"
