"""Turn encoded blocks into one token stream, repair it at seams, split it, and cut it into shards."""
