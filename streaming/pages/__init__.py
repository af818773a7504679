"""The page path: a backend's records in, chunks of HTML out. Read `views.py` first and follow the calls down."""
