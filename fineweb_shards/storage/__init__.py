"""Where bytes live: on this machine, on the hub, or in a bucket. What they contain is for `formats` to know."""
