"""Read datasets on the Hugging Face hub: listed once at one commit, then read by ranges, downloads or rows.

May import: what `sources` may.
"""
