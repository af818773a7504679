"""The live path: text and events of many streams, pushed to many browsers as they are produced."""
