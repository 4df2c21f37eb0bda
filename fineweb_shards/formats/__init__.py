"""What input files contain, and how documents are read from it. Where the bytes come from is for `storage`."""
