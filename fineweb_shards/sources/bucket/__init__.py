"""Read files in buckets of object stores: found by their address, then read by ranges.

May import: what `sources` may.
"""
