"""Images of running processes: started so that they can be imaged, dumped, packed, sealed, and gone on from."""
