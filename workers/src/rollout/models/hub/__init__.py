"""Models and files of the Hugging Face hub: pinned to a commit, resumed by bytes, believed once their digests are right."""
