"""What requests share, and what bounds it: receive buffers, and the slots that render pages off the event loop."""
