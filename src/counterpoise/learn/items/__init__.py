"""Softmax over very many items: exact in blocks or in a fused kernel, or sampled, and never a (rows × items) array."""
