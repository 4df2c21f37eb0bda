"""Read and write objects in object stores: S3 and what speaks its language, Google Cloud Storage, Azure.

Start with `Bucket` (bucket.py). The client is obstore, an optional dependency that is imported only when a
bucket is used.

May import: the root, `system`.
"""
