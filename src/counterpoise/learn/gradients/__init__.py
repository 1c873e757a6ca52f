"""Gradients: the objectives, the baselines of least variance, and one training step."""
