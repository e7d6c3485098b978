"""suffice inside other libraries: transformers' models, caches and linear layers."""

try:
    import torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"suffice.integrations needs {error.name}: pip install 'suffice[transformers]'",
        name=error.name,
    ) from None
