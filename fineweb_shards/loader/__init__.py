"""A data loader for training code: batches of tokens from finished shards for rank r of n.

from fineweb_shards.loader import ShardLoader

loader = ShardLoader("edu_fineweb10B", "train", batch_size=64, seq_len=1024, rank=0, world_size=8)
x, y = loader.next_batch()            # (64, 1024) each; y is x shifted by one token
checkpoint["loader"] = loader.state_dict()"""

from __future__ import annotations

from fineweb_shards.loader.shard_loader import ShardLoader

__all__ = ["ShardLoader"]
