"""Commands about clouds."""
