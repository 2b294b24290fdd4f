"""What a request will cost, from headers alone."""
