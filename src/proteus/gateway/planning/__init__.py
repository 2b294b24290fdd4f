"""The models that clients name, and the exact plan and price of a request to one of them."""
