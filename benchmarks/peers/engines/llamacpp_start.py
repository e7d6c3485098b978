"""Makes one token with llama-cpp-python, for start.py: the shortest program that can.

Arguments: the GGUF file, the number of threads, the context in tokens and the prompt.
"""

import sys

from llama_cpp import Llama

if __name__ == "__main__":
    path, threads, context, prompt = sys.argv[1:]
    llm = Llama(
        path,
        n_ctx=int(context),
        n_threads=int(threads),
        n_threads_batch=int(threads),
        verbose=False,
    )
    print(llm(prompt, max_tokens=1)["choices"][0]["text"], flush=True)
