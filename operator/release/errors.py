"""What a release refuses, named by the boundary that refused it."""


class ReleaseError(Exception):
    """No release comes of this; the message says what is wrong and what to do."""


class LayoutError(ReleaseError):
    """An OCI layout, or an archive of one, that is not what it says."""


class SigningKeyError(ReleaseError):
    """A key that cannot sign or verify releases."""


class RegistryError(ReleaseError):
    """A registry that refused, did not answer, or answered something else than was asked."""
