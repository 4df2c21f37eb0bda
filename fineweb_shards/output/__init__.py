"""The output in a folder or a bucket: token files, how they are written and sealed, and the manifest.

This is the file side of the data plane; the packages above decide who does the work, and when."""
