"""Policy engines behind addresses: what they say to each other, and over which of them work is spread."""
