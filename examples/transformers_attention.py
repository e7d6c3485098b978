"""A model of transformers decodes with suffice's techniques, which count reads; then without."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import suffice.integrations.transformers as st

sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
config = LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=256)
torch.manual_seed(0)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(3, 200, (2, 100))
prompt[1, :30] = 0  # padding on the left is not stored
inputs = {"input_ids": prompt, "attention_mask": (prompt > 0).long()}
plain = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

expected = model.generate(**inputs, **plain)
for chosen in (
    {"attention": "exact", "growth": "bmc"},
    {"attention": "aet:keys=0.9,globals=16"},
    {"attention": "certified:eps=0.3"},
    {"policy": "snapkv:0.5,window=16"},  # of each request's own prompt
    {"policy": "h2o:0.5"},
    {"policy": "quest:budget=48,dense_layers=0", "attention": "art"},
):
    with st.enable(model, **chosen) as enabled:
        cache = enabled.new_cache()
        tokens = model.generate(**inputs, **plain, cache=cache)
    alike = (tokens == expected).float().mean()
    read, held = enabled.trace.key_fraction, cache.bytes >> 10
    print(f"{alike:4.0%} of the tokens, {read:4.0%} of K read, {held:3} KiB held: {chosen}")
# A coded softmax needs a file of `suffice calibrate`: softmax="exaq:2", calibration="model.json"
print("undone, the same tokens:", torch.equal(model.generate(**inputs, **plain), expected))
