"""`suffice eval`: its commands, a file each."""
