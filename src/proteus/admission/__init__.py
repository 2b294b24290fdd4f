"""Who may start now, who waits, who is refused; pure logic with the clock handed in."""
