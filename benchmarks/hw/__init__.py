"""Accelerator models: runs on a real model's logits, and checks against published figures."""
