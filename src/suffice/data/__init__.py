"""Text that comes with the package."""
