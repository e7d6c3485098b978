"""The commands of `suffice eval`, one file each."""
