"""What clients send and get: the records of each API, and its handlers; never how they are read or sent."""
