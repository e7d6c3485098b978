"""suffice inside other libraries: transformers' models, caches and layers; vLLM; Ray Data."""

# Attention features of some families of transformers that suffice's kernels lack.
UNKNOWN = ("softcap", "position_bias", "s_aux", "output_attentions")


def missing(error: ImportError, extra: str = "transformers") -> ImportError:
    """Return the error of a module that is not installed, with what installs it."""
    hint = f"suffice.integrations needs {error.name}: pip install 'suffice[{extra}]'"
    return ImportError(hint, name=error.name)
