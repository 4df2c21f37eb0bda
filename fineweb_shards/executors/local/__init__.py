"""Run worker processes on this machine: start them, exchange messages with them, watch and end them."""
