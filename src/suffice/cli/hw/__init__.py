"""`suffice hw`: its commands, a file each."""
