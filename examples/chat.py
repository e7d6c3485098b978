"""A conversation with a kept cache: each turn runs only the new tokens."""

import sys

from suffice import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
llm = LLM(model)
params = SamplingParams(temperature=0, max_tokens=24)
messages = []

with llm.session() as session:
    for question in ("What is the capital of France?", "And of Italy?"):
        messages.append({"role": "user", "content": question})
        for text, output in session.chat(messages, params):  # noqa: B007 (the last one stays)
            print(text, end="", flush=True)
        print(f"\n[{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens cached]")
        messages.append({"role": "assistant", "content": output.outputs[0].text})
