"""suffice inside other people's libraries."""
