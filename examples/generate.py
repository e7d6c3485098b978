"""Generate text for one prompt. Usage: python examples/generate.py [MODEL]"""

import sys

from suffice import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
llm = LLM(model)
params = SamplingParams(temperature=0, max_tokens=24)

[output] = llm.generate("The sky is blue because", params)
print(output.prompt + output.outputs[0].text)
print(f"({output.outputs[0].finish_reason} after {len(output.outputs[0].token_ids)} tokens)")
