"""Datasets on the Hugging Face hub: listed once at one commit, then read by ranges, as downloads or by rows.

May import: what `sources` may.
"""
