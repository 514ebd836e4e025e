"""What models were saved as, once it is there: who may read it, how long it is there, and when its bytes go."""
