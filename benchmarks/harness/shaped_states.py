"""The shapes of models whose layers keep states, for files of random codes.

Sizes are those of the models' own configurations. Decays are mild, so that states neither vanish
nor grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np

from benchmarks.harness.shaped_file import EMBEDDING, HEAD, ROUTER, Tensors
from benchmarks.harness.shaped_models import Model

RATE = -0.1  # of all heads; with a step of 1.3 a state keeps 0.88


@dataclass(frozen=True)
class Hybrid(Model):
    """A shape whose layers `attends` have attention, and the others states.

    `state_heads` of `state_values` values have `state_groups` groups of keys and queries of
    `state_keys`; without heads the states are those of convolutions of `taps`. A layer's MLP is of
    the width `hidden`, along with `chosen` of the `experts` of width `inner`, if there are any.
    """

    attends: tuple[int, ...] = ()
    taps: int = 4
    state_heads: int = 0
    state_groups: int = 0
    state_keys: int = 0
    state_values: int = 0
    experts: int = 0
    chosen: int = 0
    inner: int = 0

    @property
    def state_width(self) -> int:
        """Values of all heads."""
        return self.state_heads * self.state_values

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.state_width + 2 * self.state_groups * self.state_keys

    def tensors(self) -> Tensors:
        """Return the name and the shape of each tensor."""
        found: Tensors = {EMBEDDING: (self.vocabulary, self.width)}
        for layer in range(self.layers):
            own = {"attn_norm.weight": (self.width,)}
            own |= self._attention() if layer in self.attends else self._state()
            own |= self._mlp()
            found |= {f"blk.{layer}.{name}": size for name, size in own.items()}
        if not self.tied:
            found[HEAD] = (self.vocabulary, self.width)
        return found | {self._final: (self.width,)}

    @property
    def _final(self) -> str:
        return f"{'token_embd' if self.architecture == 'lfm2' else 'output'}_norm.weight"

    @property
    def _delta(self) -> bool:
        return self.architecture == "qwen35"

    def _attention(self) -> Tensors:
        width, head = self.width, self.head_size
        queries, keys = self.heads * head, self.kv_heads * head
        found: Tensors = {
            "attn_q.weight": (queries * (2 if self._delta else 1), width),
            "attn_k.weight": (keys, width),
            "attn_v.weight": (keys, width),
            "attn_output.weight": (width, queries),
        }
        if self.architecture != "granitehybrid":
            found |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
        return found

    def _state(self) -> Tensors:
        width, inner, heads = self.width, self.state_width, self.state_heads
        if not heads:
            return {
                "shortconv.in_proj.weight": (3 * width, width),
                "shortconv.conv.weight": (width, self.taps),
                "shortconv.out_proj.weight": (width, width),
            }
        found: Tensors = {
            "ssm_conv1d.weight": (self.channels, self.taps),
            "ssm_dt.bias": (heads,),
            "ssm_out.weight": (width, inner),
        }
        if self._delta:
            return found | {
                "attn_qkv.weight": (self.channels, width),
                "attn_gate.weight": (inner, width),
                "ssm_alpha.weight": (heads, width),
                "ssm_beta.weight": (heads, width),
                "ssm_a": (heads,),
                "ssm_norm.weight": (self.state_values,),
            }
        return found | {
            "ssm_in.weight": (inner + self.channels + heads, width),
            "ssm_conv1d.bias": (self.channels,),
            "ssm_a": (heads, 1),
            "ssm_d": (heads, 1),
            "ssm_norm.weight": (self.state_groups, inner // self.state_groups),
        }

    def _mlp(self) -> Tensors:
        width = self.width
        norm = "post_attention_norm" if self._delta else "ffn_norm"
        part = "_shexp" if self.experts else ""
        found: Tensors = {
            f"{norm}.weight": (width,),
            f"ffn_gate{part}.weight": (self.hidden, width),
            f"ffn_up{part}.weight": (self.hidden, width),
            f"ffn_down{part}.weight": (width, self.hidden),
        }
        if self.experts:
            found |= {
                f"{ROUTER}.weight": (self.experts, width),
                "ffn_gate_exps.weight": (self.experts, self.inner, width),
                "ffn_up_exps.weight": (self.experts, self.inner, width),
                "ffn_down_exps.weight": (self.experts, width, self.inner),
            }
        return found

    def add_facts(self, writer: gguf.GGUFWriter) -> None:
        """Add the architecture's own metadata."""
        super().add_facts(writer)
        name = self.architecture
        if not self._delta:
            heads = [self.kv_heads if at in self.attends else 0 for at in range(self.layers)]
            writer.kv_data[-1].pop(f"{name}.attention.head_count_kv")
            writer.add_head_count_kv(heads)
        if name == "lfm2":
            writer.add_shortconv_l_cache(self.taps)
            return
        writer.add_ssm_conv_kernel(self.taps)
        writer.add_ssm_state_size(self.state_keys)
        writer.add_ssm_group_count(self.state_groups)
        writer.add_ssm_time_step_rank(self.state_heads)
        writer.add_ssm_inner_size(self.state_width)
        if self._delta:
            writer.kv_data[-1].pop(f"{name}.rope.dimension_count")
            writer.add_rope_dimension_count(self.head // 4)
            writer.add_rope_dimension_sections([11, 11, 10, 0])
            writer.add_full_attention_interval(self.attends[0] + 1)
            return
        writer.add_rope_scaling_finetuned(False)  # no positions
        writer.add_attention_scale(1 / self.head)
        writer.add_embedding_scale(12.0)
        writer.add_residual_scale(0.22)
        writer.add_logit_scale(6.0)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.chosen)
        writer.kv_data[-1].pop(f"{name}.feed_forward_length")
        writer.add_feed_forward_length(self.inner)
        writer.add_expert_shared_feed_forward_length(self.hidden)

    def given(self) -> dict[str, np.ndarray]:
        """Return the tensors that are not random."""
        return {
            name: np.full(size, RATE, np.float32)
            for name, size in self.tensors().items()
            if name.endswith(".ssm_a")
        }


MODELS = {
    model.name: model
    for model in (
        Hybrid(
            *("qwen3.5-4b", 32, 2560, 9216, 16, 4, 248_320),
            title="Qwen3.5-4B",
            head=256,
            context=262_144,
            architecture="qwen35",
            norm_eps=1e-6,
            rope_base=1e7,
            tied=True,
            attends=tuple(range(3, 32, 4)),
            state_heads=32,
            state_groups=16,
            state_keys=128,
            state_values=128,
        ),
        Hybrid(
            *("lfm2-1.2b", 16, 2048, 8192, 32, 8, 65_536),
            title="LFM2-1.2B",
            head=64,
            context=128_000,
            architecture="lfm2",
            rope_base=1e6,
            tied=True,
            attends=(2, 5, 8, 10, 12, 14),
            taps=3,
        ),
        Hybrid(
            *("granite-4.0-h-tiny", 40, 1536, 1024, 12, 4, 100_352),
            title="Granite-4.0-H-Tiny",
            head=128,
            context=131_072,
            architecture="granitehybrid",
            tied=True,
            attends=(5, 15, 25, 35),
            state_heads=48,
            state_groups=1,
            state_keys=128,
            state_values=64,
            experts=64,
            chosen=6,
            inner=512,
        ),
    )
}
