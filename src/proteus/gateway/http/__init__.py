"""A connection and the request on it: bounded, checked, watched until its client has the answer."""
