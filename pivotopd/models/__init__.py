"""Models: generators, scorers, checkpoints, and the tiny student."""
