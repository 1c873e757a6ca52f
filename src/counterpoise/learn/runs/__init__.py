"""Training runs: their options, epochs, checkpoints and devices, and which epoch is kept."""
