"""Where streams live: in this process, or in a server that several processes share."""
