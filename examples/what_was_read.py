"""Every decode step counts its reads: weights, and keys and values relative to those held."""

import sys

from suffice import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)

for weights, keys_and_values in (("none", "float32"), ("none", "bfloat16"), ("int8", "int8")):
    llm = LLM(model, quantization=weights, kv_cache_dtype=keys_and_values, dtype="auto")
    llm.generate("Numbers do not lie,", params)
    trace = llm.runner.trace
    print(
        f"{weights:5} {keys_and_values:9} {trace.weight_bytes_read / trace.steps / 1e6:8.2f} MB of "
        f"weights and {trace.kv_bytes_read / trace.steps / 1e3:7.1f} kB of keys and values a step, "
        f"{100 * trace.key_fraction:.0f} % of the keys held"
    )
