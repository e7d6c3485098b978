"""suffice's growth policies as the cache of any transformers model: same tokens, fewer copies."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from suffice.integrations.transformers import GrowingCache

sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
config = LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=256)
torch.manual_seed(0)
model = LlamaForCausalLM(config).eval()
prompt = torch.tensor([[5, 17, 42]])
plain = {"max_new_tokens": 60, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

expected = model.generate(prompt, **plain)
for growth in ("iterative", "bmc:rows=32", "double", "upfront"):
    cache = GrowingCache(model.config, growth=growth)
    tokens = model.generate(prompt, cache=cache, **plain)
    print(f"{growth:12} same tokens: {torch.equal(tokens, expected)}, {cache.capacity} rows held")
