"""The server beside those of llama.cpp and vLLM, and under faults."""
