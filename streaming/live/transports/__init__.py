"""The carriers of the live path: how each frames what goes out, and reads what comes in."""
