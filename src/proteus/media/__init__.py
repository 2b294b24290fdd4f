"""What the first bytes of a medium tell, and the ways media come in; no pixel is decoded here."""
