"""The output, in a folder or a bucket: files of tokens, how they are written and sealed, and the manifest.

Of the data plane, this is what it does to files; who does it, and when, is decided above."""
