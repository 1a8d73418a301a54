"""What a client does: network, training loop, optimisers."""
