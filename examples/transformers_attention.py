"""A model of transformers decodes with suffice's attention, which says what it read; then not."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import suffice.integrations.transformers as st

sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
config = LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=256)
torch.manual_seed(0)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(3, 200, (2, 100))
prompt[1, :30] = 0  # padding on the left, which is not even stored
inputs = {"input_ids": prompt, "attention_mask": (prompt > 0).long()}
plain = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

expected = model.generate(**inputs, **plain)
for attention in ("exact", "aet:k=0.9,globals=16", "certified:eps=0.3"):
    with st.enable(model, attention=attention, cache="bmc") as enabled:
        tokens = model.generate(**inputs, **plain)
    alike = (tokens == expected).float().mean()
    print(f"{attention:20} {alike:4.0%} of the tokens, {enabled.trace.key_fraction:4.0%} of K read")
print("undone, the same tokens:", torch.equal(model.generate(**inputs, **plain), expected))
