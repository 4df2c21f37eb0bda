"""The control plane's side of writing: where tokens belong, when a checkpoint is recorded, what is named."""
