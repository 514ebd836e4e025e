"""What a release is made of: wheels, packed charts, images from archives, and the SBOM of each."""
