"""The accelerator models: a real model's logits, and the checks against published figures."""
