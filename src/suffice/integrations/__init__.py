"""suffice inside other libraries."""
