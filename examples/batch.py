"""Prompts of unequal length decode together; each ends on its own, and a seed is reproducible."""

import sys

from suffice import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
llm = LLM(model)
prompts = ["One, two, three,", "A short story about a lighthouse keeper. Once upon a time"]
params = [
    SamplingParams(temperature=0, max_tokens=8, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=32, stop=["\n\n"]),
]

together = llm.generate(prompts, params)
alone = [llm.generate(prompt, one)[0] for prompt, one in zip(prompts, params, strict=True)]
for both, single in zip(together, alone, strict=True):
    assert both.outputs[0].token_ids == single.outputs[0].token_ids
    print(repr(both.outputs[0].text), both.outputs[0].finish_reason)

first = together[0].outputs[0].logprobs[0]
for entry in first.values():
    print(f"{entry.decoded_token!r:12} rank {entry.rank}  log probability {entry.logprob:.2f}")
