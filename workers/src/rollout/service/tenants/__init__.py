"""What keys may use of a training service, together and each: turns are ``turns``, the rest is here."""
