"""Few bits: perplexity, right answers, matmul speed."""
