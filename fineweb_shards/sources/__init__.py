"""What a build reads: files found by `--input`, or listed on the hub, each in its place and of its format."""
