"""Which server answers an order, and how servers are watched."""
