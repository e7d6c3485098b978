"""Few bits: quality, right answers, matmul speed."""
