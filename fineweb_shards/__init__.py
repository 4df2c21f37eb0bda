"""fineweb_shards: text in, GPT-2 token shards out. Exact, bounded, unkillable, fast."""

__version__ = "0.2.0"
