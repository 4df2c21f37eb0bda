"""Access to the operating system: memory, disk, durable files, signals, retries, text on a terminal."""
