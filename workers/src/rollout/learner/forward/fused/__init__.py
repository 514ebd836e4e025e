"""Parts of the forward that CUDA devices compute in one pass each (Triton), and only there."""
