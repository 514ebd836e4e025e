"""What can go wrong with the test cluster, each with what to do about it."""


class ClusterError(Exception):
    """The test cluster could not do what was asked; the message says why and what to do."""


class BuildError(ClusterError):
    """A binary could not be built."""


class StartError(ClusterError):
    """A process of the cluster did not become ready."""


class CannotRunHereError(ClusterError):
    """This machine lacks what was asked for (root, namespaces, a package); nothing was started."""
