"""The server, compared with those of llama.cpp and vLLM, and under faults."""
