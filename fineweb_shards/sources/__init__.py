"""What a build reads: files found by `--input`, or listed on the hub."""
