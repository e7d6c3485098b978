"""Generate text for one prompt, with int8 weights and an int8 cache: the fast setting.

Without the two options the model runs as it is stored, slower and without their loss of quality.

Usage: python examples/generate.py [MODEL]
"""

import sys

from suffice import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
llm = LLM(model, quantization="int8", kv_cache_dtype="int8")
params = SamplingParams(temperature=0, max_tokens=24)

[output] = llm.generate("The sky is blue because", params)
print(output.prompt + output.outputs[0].text)
print(f"({output.outputs[0].finish_reason} after {len(output.outputs[0].token_ids)} tokens)")
