"""What a model is worth: how fast it runs and how good its answers are."""
