"""What carries out the plain values of techniques: a folder for each kind of machine."""
