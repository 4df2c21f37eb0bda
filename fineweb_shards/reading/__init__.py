"""Read finished shards: verify, count, inspect and sample them, or stream their tokens."""
