"""Show and record how a run goes: progress and time left, screen, log, heartbeat, history, `status`."""
