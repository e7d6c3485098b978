"""The commands of `suffice hw`, one file each."""
