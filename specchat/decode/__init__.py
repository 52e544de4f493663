"""The algorithm: speculative sampling over two things that map ids to logits. Knows torch, nothing else."""
