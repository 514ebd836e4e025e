"""From a document to what the processes of a run read: manifest, resolution, plan, configuration."""
