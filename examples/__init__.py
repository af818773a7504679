"""What Headrace does, to look at: `python -m examples`."""
