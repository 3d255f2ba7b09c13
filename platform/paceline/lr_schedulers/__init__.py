"""How the learning rate changes over training, one file each."""
